"""Cameras' pictures, and behind them the views that are derived from one: made anew wherever they are needed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyview.data.augment import Augmentation, augment
from manyview.utils.counter_rng import derive_keys


@dataclass(frozen=True)
class DerivedViews:
    """How further views come from the cameras.

    What is random about a picture is decided by two numbers, of a draw and of its environment, so a rollout keeps the
    cameras' frames alone and whoever asks later sees the same views.
    PAPER: D34. There is a draw for each rollout. With one for each frame, r̂ pays for the draws.
    """

    seed: int
    augmentations: Sequence[tuple[int, Augmentation]] = ()
    """Of which camera, by its number, and how."""

    def __call__(self, views: Tensor, mask: Tensor, *, draw_ids: Tensor, env_ids: Tensor) -> tuple[Tensor, Tensor]:
        """`views` [B, V, C, H, W] and `mask` [B, V] of the cameras, with those derived from them after them.

        Rows of equal `draw_ids` and `env_ids` [B] are changed alike. A derived view is absent when its camera is.
        """
        if not self.augmentations:
            return views, mask
        key = derive_keys(self.seed, draw_ids, env_ids)
        augmented = [
            augment(views[:, camera].contiguous(), key + index, augmentation)
            for index, (camera, augmentation) in enumerate(self.augmentations)
        ]
        present = torch.stack([mask[:, camera] for camera, _ in self.augmentations], 1)
        images = torch.where(present[:, :, None, None, None], torch.stack(augmented, 1), views.new_zeros(()))
        return torch.cat([views, images], 1), torch.cat([mask, present], 1)
