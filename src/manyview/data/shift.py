"""DrQ-v2's augmentation: a random shift by whole pixels, the border repeated."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ShiftMode = Literal["each", "common"]


def random_shift(views: Tensor, pixels: int, generator: torch.Generator, mode: ShiftMode = "each") -> Tensor:
    """`views` [B, V, C, H, W] uint8, moved by up to `pixels` down or up, right or left.

    Each image by its own draw, or all of a view by a `common` one, which leaves them comparable with one another.
    """
    count = views.shape[:2] if mode == "each" else (1, views.shape[1])
    offsets = torch.randint(2 * pixels + 1, (2, *count), generator=generator, device=generator.device) - pixels
    return shift_views(views, offsets.expand(2, *views.shape[:2])) if pixels else views


def shift_views(views: Tensor, offsets: Tensor) -> Tensor:
    """Views [B, V, C, H, W] that show at each pixel what was `moves` [2, B, V] pixels below it and to its right."""
    height, width = views.shape[-2:]
    if offsets.numel() and int(offsets.abs().max()) >= min(height, width):
        raise ValueError(f"a shift of {int(offsets.abs().max())} pixels leaves nothing of images of {height}x{width}")
    if views.device.type == "cpu":
        return torch.from_numpy(_shift_by_slices(views.numpy(), offsets.numpy()))
    return _shift_by_gather(views, offsets.to(views.device))


def _shift_by_gather(views: Tensor, offsets: Tensor) -> Tensor:
    """On a device all pixels at once, by their places."""
    height, width = views.shape[-2:]
    down, right = offsets.unsqueeze(-1)
    rows = (torch.arange(height, device=views.device) + down).clamp_(0, height - 1)  # [B, V, H]
    columns = (torch.arange(width, device=views.device) + right).clamp_(0, width - 1)  # [B, V, W]
    indices = (rows[..., None] * width + columns[..., None, :]).flatten(2).unsqueeze(2)  # [B, V, 1, H * W]
    return views.flatten(3).gather(3, indices.expand(-1, -1, views.shape[2], -1)).view(views.shape)


def _shift_by_slices(views: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """On a CPU by slices, which numpy copies row by row; gathering pixels one by one is 20 times slower."""
    height = views.shape[-2]
    images = np.ascontiguousarray(views).reshape(-1, *views.shape[2:])
    out = np.empty_like(images)
    for image, shifted, down, right in zip(images, out, *offsets.reshape(2, -1).tolist(), strict=True):
        top, bottom = max(0, -down), min(height, height - down)
        source, target = image[:, top + down : bottom + down], shifted[:, top:bottom]
        if right > 0:
            target[..., :-right] = source[..., right:]
            target[..., -right:] = source[..., -1:]
        elif right < 0:
            target[..., -right:] = source[..., :right]
            target[..., :-right] = source[..., :1]
        else:
            target[:] = source
        if top:
            shifted[:, :top] = shifted[:, top : top + 1]
        elif bottom < height:
            shifted[:, bottom:] = shifted[:, bottom - 1 : bottom]
    return out.reshape(views.shape)
