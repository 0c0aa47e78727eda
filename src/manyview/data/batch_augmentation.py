"""Augmentation of batches: DrQ's random shift, RAD's random crop, view dropout.

View dropout hides views from an agent in training, so that it can act on any subset of them.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyview.utils.counter_rng import uniform

ShiftMode = Literal["each", "common"]
ReplayAugmentation = Literal["shift", "crop", "none"]


def random_shift(views: Tensor, pixels: int, generator: torch.Generator, mode: ShiftMode = "each") -> Tensor:
    """Shift `views` [B, V, C, H, W] uint8 at random by up to ±`pixels` in both directions.

    Mode `each` draws a shift per image; `common` draws one per view, so that images of a batch stay comparable.
    """
    count = views.shape[:2] if mode == "each" else (1, views.shape[1])
    offsets = torch.randint(2 * pixels + 1, (2, *count), generator=generator, device=generator.device) - pixels
    return shift_views(views, offsets.expand(2, *views.shape[:2])) if pixels else views


def shift_views(views: Tensor, offsets: Tensor) -> Tensor:
    """Shift `views` [B, V, C, H, W] up and left by `offsets` [2, B, V] pixels.

    Border pixels are repeated. Raises ValueError if an offset is not smaller than the image.
    """
    height, width = views.shape[-2:]
    if offsets.numel() and int(offsets.abs().max()) >= min(height, width):
        raise ValueError(
            f"shift is too large: expected less than {min(height, width)} pixels for images of {height}x{width}, "
            f"got {int(offsets.abs().max())}"
        )
    if views.device.type == "cpu":
        return torch.from_numpy(_shift_by_slices(views.numpy(), offsets.numpy()))
    return _shift_by_gather(views, offsets.to(views.device))


def random_crop(views: Tensor, size: int, generator: torch.Generator, mode: ShiftMode = "each") -> Tensor:
    """Crop `views` [B, V, C, H, W] uint8 at random to [B, V, C, size, size].

    All stacked frames of an image have the same window (Laskin et al., 2020). The modes are those of `random_shift`.
    """
    _check_crop_size(views, size)
    count = views.shape[:2] if mode == "each" else (1, views.shape[1])
    starts = [
        torch.randint(length - size + 1, count, generator=generator, device=generator.device)
        for length in views.shape[-2:]
    ]
    return crop_views(views, torch.stack(starts).expand(2, *views.shape[:2]), size)


def center_crop(views: Tensor, size: int) -> Tensor:
    """Return the central window of `views` [..., H, W] as [..., size, size], without a copy."""
    _check_crop_size(views, size)
    top, left = ((length - size) // 2 for length in views.shape[-2:])
    return views[..., top : top + size, left : left + size]


def crop_views(views: Tensor, starts: Tensor, size: int) -> Tensor:
    """Return the windows of `views` [B, V, C, H, W] that start at `starts` [2, B, V].

    The result is [B, V, C, size, size].
    """
    # Slices are three times as fast on a CPU; on an accelerator each would be a kernel launch.
    crop_windows = _crop_by_slices if views.device.type == "cpu" else _crop_by_index
    return crop_windows(views, starts.to(views.device), size)


@dataclass(frozen=True)
class ImageAugmentation:
    """Augmentation of replay batches: DrQ's random `shift`, RAD's random `crop`, or `none`."""

    kind: ReplayAugmentation = "shift"
    pixels: int = 4
    """Largest shift, or the pixels by which a crop is smaller than the image."""

    def apply(self, images: Tensor, generator: torch.Generator, mode: ShiftMode) -> Tensor:
        """Return augmented images [B, V, C, H, W] uint8."""
        if self.kind == "shift":
            return random_shift(images, self.pixels, generator, mode)
        if self.kind == "crop":
            return random_crop(images, images.shape[-1] - self.pixels, generator, mode)
        return images

    def crop_center(self, images: Tensor) -> Tensor:
        """Return images as an evaluation sees them: the center with `crop`, else unchanged."""
        return center_crop(images, images.shape[-1] - self.pixels) if self.kind == "crop" else images

    def crop_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the shape [C, H, W] of augmented images.

        Raises ValueError if a crop does not fit.
        """
        if self.kind != "crop":
            return image_shape
        channels, height, width = image_shape
        if height != width or self.pixels >= height:
            raise ValueError(
                f"replay.augmentation=crop: expected square images of more than {self.pixels} pixels "
                f"(replay.augmentation_pixels), got {height}x{width}"
            )
        return channels, height - self.pixels, width - self.pixels


RANDOM_SHIFT = ImageAugmentation()
"""DrQ's augmentation: shifts by up to 4 pixels."""


def drop_views(mask: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Drop each present view of `mask` [B, V] bool with `probability`.

    A row keeps at least one present view: if all would be dropped, one of them, chosen uniformly. So each of n present
    views stays with probability 1 - p + p^n / n.
    """
    values = torch.rand(mask.shape, generator=generator, device=generator.device)
    return _drop_low_values(mask, probability, values.to(mask.device))


def drop_views_by_key(mask: Tensor, probability: float, keys: Tensor) -> Tensor:
    """Drop views as `drop_views` does, each row of `mask` by its key of `keys` [B] int64."""
    # The streams below 3 are those of `augment`, which may use the same keys.
    return _drop_low_values(mask, probability, uniform(keys, mask.shape[1], stream=3))


def _shift_by_gather(views: Tensor, offsets: Tensor) -> Tensor:
    """Shift all pixels at once by index, for accelerators."""
    height, width = views.shape[-2:]
    down, right = offsets.unsqueeze(-1)
    rows = (torch.arange(height, device=views.device) + down).clamp_(0, height - 1)  # [B, V, H]
    columns = (torch.arange(width, device=views.device) + right).clamp_(0, width - 1)  # [B, V, W]
    indices = (rows[..., None] * width + columns[..., None, :]).flatten(2).unsqueeze(2)  # [B, V, 1, H * W]
    return views.flatten(3).gather(3, indices.expand(-1, -1, views.shape[2], -1)).view(views.shape)


def _shift_by_slices(views: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Shift by slices, for CPUs: 20 times faster than gathering pixels."""
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


def _check_crop_size(views: Tensor, size: int) -> None:
    height, width = views.shape[-2:]
    if not 1 <= size <= min(height, width):
        raise ValueError(
            f"invalid crop size: expected 1 to {min(height, width)} pixels for images of {height}x{width}, got {size}"
        )


def _crop_by_index(views: Tensor, starts: Tensor, size: int) -> Tensor:
    """Copy all windows at once by index, for accelerators."""
    windows = views.unfold(3, size, 1).unfold(4, size, 1)  # [B, V, C, H - size + 1, W - size + 1, size, size]
    rows, columns = (torch.arange(count, device=views.device) for count in views.shape[:2])
    return windows[rows[:, None], columns, :, starts[0], starts[1]]


def _crop_by_slices(views: Tensor, starts: Tensor, size: int) -> Tensor:
    out = torch.empty(*views.shape[:3], size, size, dtype=views.dtype)
    images = np.ascontiguousarray(views.numpy()).reshape(-1, *views.shape[2:])
    windows = out.flatten(0, 1).numpy()
    for image, window, top, left in zip(images, windows, *starts.reshape(2, -1).tolist(), strict=True):
        window[:] = image[:, top : top + size, left : left + size]
    return out


def _drop_low_values(mask: Tensor, probability: float, values: Tensor) -> Tensor:
    """Drop the views of `mask` [B, V] whose `values`, uniform in [0, 1), are below `probability`."""
    if not 0 <= probability <= 1:
        raise ValueError(f"invalid probability of a dropped view: expected 0 to 1, got {probability}")
    # Where all values are below the probability, the largest belongs to each present view equally often.
    best = values.masked_fill(~mask, -1).argmax(1, keepdim=True)
    return (values >= probability).scatter(1, best, True) & mask
