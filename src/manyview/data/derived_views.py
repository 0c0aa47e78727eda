"""Cameras' pictures, and behind them the views that are derived from one: made anew wherever they are needed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyview.data.augmentation import Augmentation, augment
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


def pack_bits(foreground: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The pixels [..., H, W] that a derived view shows, eight to a byte, row after row: [..., H * W / 8]."""
    return np.packbits(foreground.reshape(*foreground.shape[:-2], -1), axis=-1)


def apply_bits(
    images: NDArray[np.uint8], bits: NDArray[np.uint8], fill: Sequence[int], *, out: NDArray[np.uint8]
) -> None:
    """`images` [N, C, H * W] where `bits` [N, H * W / 8] are set, `fill` elsewhere, written to `out`."""
    # All bits in one row: numpy unpacks them faster than along an axis. The last byte of a frame may be part empty.
    foreground = np.unpackbits(bits).reshape(len(bits), 1, -1)[..., : images.shape[2]]
    # Multiplying by 0 and 1 is what numpy does fastest here; its masked copies take a hundred times as long.
    if not any(fill):
        np.multiply(images, foreground, out=out)
        return
    colour = np.array(fill, np.uint8)[:, None]
    np.bitwise_xor(images, colour, out=out)
    out *= foreground
    out ^= colour


def flatten_pixels(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pictures [..., C, H, W] as the [N, C, H * W] of `apply_bits`."""
    return frames.reshape(-1, frames.shape[-3], frames.shape[-2] * frames.shape[-1])
