"""Derived views, recomputed from camera frames where they are needed.

`DerivedViews` makes augmented views on tensors, for rollouts. `pack_bits` and `apply_bits` store a background-removed
view as one bit per pixel, for the replay buffer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyview.data.augmentation import Augmentation, augment
from manyview.data.batch_augmentation import drop_views_by_key
from manyview.utils.counter_rng import derive_keys


@dataclass(frozen=True)
class DerivedViews:
    """Augmented views, derived from cameras.

    The randomness of an image is a function of a draw id and its environment's id. A rollout therefore stores only
    camera frames, and recomputed views are always equal.
    PAPER: D34. One draw per rollout. With one per frame, r̂ would reward the randomness of the draws.
    """

    seed: int
    augmentations: Sequence[tuple[int, Augmentation]] = ()
    """Pairs of camera index and augmentation, one per derived view."""
    dropout: float = 0.0
    """Probability with which each view is marked as absent, cameras included; one is always kept."""

    def __call__(self, views: Tensor, mask: Tensor, *, draw_ids: Tensor, env_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Append the derived views to the cameras' `views` [B, V, C, H, W] and `mask` [B, V].

        Rows with equal `draw_ids` and `env_ids` [B] get equal randomness. A derived view is absent if its camera is.
        """
        key = derive_keys(self.seed, draw_ids, env_ids)
        if self.augmentations:
            views, mask = self._append_views(views, mask, key)
        return views, drop_views_by_key(mask, self.dropout, key) if self.dropout else mask

    def _append_views(self, views: Tensor, mask: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        augmented = [
            augment(views[:, camera].contiguous(), key + index, augmentation)
            for index, (camera, augmentation) in enumerate(self.augmentations)
        ]
        present = torch.stack([mask[:, camera] for camera, _ in self.augmentations], 1)
        images = torch.where(present[:, :, None, None, None], torch.stack(augmented, 1), views.new_zeros(()))
        return torch.cat([views, images], 1), torch.cat([mask, present], 1)


def pack_bits(foreground: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Pack a foreground mask [..., H, W] to bits, row by row: [..., H * W / 8] uint8."""
    return np.packbits(foreground.reshape(*foreground.shape[:-2], -1), axis=-1)


def apply_bits(
    images: NDArray[np.uint8], bits: NDArray[np.uint8], fill: Sequence[int], *, out: NDArray[np.uint8]
) -> None:
    """Write `images` [N, C, H * W] where `bits` [N, H * W / 8] are set, else `fill`, to `out`."""
    # One flat array: numpy unpacks it faster than along an axis. The last byte of a frame may be partly unused.
    foreground = np.unpackbits(bits).reshape(len(bits), 1, -1)[..., : images.shape[2]]
    # Multiplication by 0 and 1 is fastest here; numpy's masked copies take a hundred times as long.
    if not any(fill):
        np.multiply(images, foreground, out=out)
        return
    color = np.array(fill, np.uint8)[:, None]
    np.bitwise_xor(images, color, out=out)
    out *= foreground
    out ^= color


def flatten_pixels(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reshape images [..., C, H, W] to [N, C, H * W], as `apply_bits` takes them."""
    return frames.reshape(-1, frames.shape[-3], frames.shape[-2] * frames.shape[-1])
