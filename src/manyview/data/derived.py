"""Cameras' pictures, and behind them the views that are derived from one: made anew wherever they are needed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyview.data.augment import Augmentation, augment
from manyview.data.draws import keys


@dataclass(frozen=True)
class Derived:
    """How further views come from the cameras.

    What is random about a picture is decided by two numbers, of a draw and of its environment, so a rollout keeps the
    cameras' frames alone and whoever asks later sees the same views.
    PAPER: D34. There is a draw for each rollout. With one for each frame, r̂ pays for the draws.
    """

    seed: int
    ways: Sequence[tuple[int, Augmentation]] = ()
    """Of which camera, by its number, and how."""

    def __call__(self, views: Tensor, mask: Tensor, *, draw: Tensor, env: Tensor) -> tuple[Tensor, Tensor]:
        """`views` [B, V, C, H, W] and `mask` [B, V] of the cameras, with those derived from them after them.

        Rows of the same `draw` and `env` [B] are changed in the same way. A derived view is absent when its camera is.
        """
        if not self.ways:
            return views, mask
        key = keys(self.seed, draw, env)
        made = [augment(views[:, camera].contiguous(), key + way, how) for way, (camera, how) in enumerate(self.ways)]
        shown = torch.stack([mask[:, camera] for camera, _ in self.ways], 1)
        pictures = torch.where(shown[:, :, None, None, None], torch.stack(made, 1), views.new_zeros(()))
        return torch.cat([views, pictures], 1), torch.cat([mask, shown], 1)
