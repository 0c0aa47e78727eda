"""Image augmentation: derived views by key, DrQ-v2's shift, RAD's crop, view dropout.

`augment` makes the derived views that the paper adds to a Procgen screen. It takes images [N, C, H, W] uint8 and a key
[N], and returns images of the same shape and dtype. All randomness comes from the key: acting, training and resuming
see the same view, and only the camera's frame is stored. The eight augmentations are those of Raileanu et al. (2020);
their sizes are for 64 x 64 images and scale with the image.

`random_shift` and `random_crop` augment the batches of off-policy agents. `drop_views` hides views from an agent in
training, so that it can act on any subset of them.
"""

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from manyview.utils.counter_rng import integers, normal, uniform

Augmentation = Literal["crop", "cutout", "cutout_color", "random_conv", "flip", "rotate", "grayscale", "color_jitter"]
ShiftMode = Literal["each", "common"]
LUMA = (38, 75, 15)
"""Weights of red, green and blue in the luma (ITU-R BT.601), in units of 1/128: exact in 16 bits."""
CACHED_IMAGES = 32
"""Images that `color_jitter` processes at a time: their floats fit a core's cache, 1.6 times as fast as all."""
TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
FROM_YIQ = torch.linalg.inv(TO_YIQ)


def augment(images: Tensor, key: Tensor, augmentation: Augmentation) -> Tensor:
    """Return images [N, C, H, W] uint8 changed by `augmentation`, each by its `key` [N] int64."""
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise TypeError(f"invalid images: expected [N, C, H, W] uint8, got {list(images.shape)} {images.dtype}")
    if key.shape != images.shape[:1] or key.dtype != torch.int64:
        raise ValueError(f"invalid key: expected [{len(images)}] int64, got {list(key.shape)} {key.dtype}")
    check_image_shape(augmentation, (images.shape[1], images.shape[2], images.shape[3]))
    with torch.autocast(images.device.type, enabled=False):  # the same image in every precision mode
        return AUGMENTATIONS[augmentation](images, key)


def check_image_shape(augmentation: Augmentation, image_shape: tuple[int, int, int]) -> None:
    """Raise ValueError if `augmentation` does not support images [C, H, W]."""
    channels, height, width = image_shape
    if augmentation in ("grayscale", "color_jitter") and channels != 3:
        raise ValueError(f"{augmentation} needs RGB images of a single frame: expected 3 channels, got {channels}")
    if augmentation == "rotate" and height != width:
        raise ValueError(f"rotate needs square images: expected equal height and width, got {height}x{width}")


def crop(images: Tensor, key: Tensor) -> Tensor:
    """Crop at random from the image padded by 12 pixels of its border; the size stays."""
    max_shift = _scale_pixels(images, 12)
    return shift_views(images.unsqueeze(1), integers(key, 2, -max_shift, max_shift).T.unsqueeze(-1)).squeeze(1)


def cutout(images: Tensor, key: Tensor) -> Tensor:
    """Paint a random rectangle with sides of 7 to 22 pixels black."""
    return _paint_rectangles(images, key, torch.zeros(images.shape[:2], dtype=torch.uint8, device=images.device))


def cutout_color(images: Tensor, key: Tensor) -> Tensor:
    """Paint the rectangle of `cutout` in a random color."""
    return _paint_rectangles(images, key, integers(key, images.shape[1], 0, 255, stream=1).to(torch.uint8))


def random_conv(images: Tensor, key: Tensor) -> Tensor:
    """Apply a random 3 x 3 convolution and a sigmoid: shapes stay, colors change."""
    count, channels, height, width = images.shape
    std = (2 / (9 * (channels + channels))) ** 0.5  # Xavier initialization
    weights = normal(key, channels * channels * 9).view(count * channels, channels, 3, 3) * std
    padded = F.pad(images.float().mul_(1 / 255), (1, 1, 1, 1), mode="replicate")
    mixed = F.conv2d(padded.view(1, count * channels, height + 2, width + 2), weights, groups=count)
    return mixed.sigmoid_().mul_(255).round_().to(torch.uint8).view(images.shape)


def flip(images: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
    """Flip horizontally."""
    # PAPER: D34. Always: a random flip would make half of the view a copy of the camera's.
    return images.flip(-1)


def rotate(images: Tensor, key: Tensor) -> Tensor:
    """Rotate by a random multiple of 90 degrees, 0 included."""
    quarter_turns, out = integers(key, 1, 0, 3).squeeze(1), torch.empty_like(images)
    for turns in range(4):
        rows = quarter_turns == turns
        out[rows] = torch.rot90(images[rows], turns, (-2, -1))
    return out


def grayscale(images: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
    """Set every channel to the luma."""
    # PAPER: D34. Always, as `flip`.
    red, green, blue = (images[:, channel].short() for channel in range(3))
    gray = red.mul_(LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2]).bitwise_right_shift_(7)
    return torch.empty_like(images).copy_(gray.unsqueeze(1))


def color_jitter(images: Tensor, key: Tensor) -> Tensor:
    """Scale brightness, contrast and saturation by 0.6 to 1.4 and rotate the hue by any angle.

    One matrix per image: the hue rotates in the I-Q plane of YIQ, which is linear and preserves the brightness.
    """
    count = len(images)
    brightness, contrast, saturation = (0.6 + 0.8 * uniform(key, 3)).T.unbind()
    angle = 2 * torch.pi * uniform(key, 1, stream=1).squeeze(1)
    to_yiq, from_yiq = (table.to(images.device) for table in (TO_YIQ, FROM_YIQ))
    hue_rotation = torch.zeros(count, 3, 3, device=images.device)
    hue_rotation[:, 0, 0] = 1
    hue_rotation[:, 1, 1] = hue_rotation[:, 2, 2] = saturation * angle.cos()
    hue_rotation[:, 2, 1] = saturation * angle.sin()
    hue_rotation[:, 1, 2] = -hue_rotation[:, 2, 1]
    matrix = (brightness * contrast)[:, None, None] * (from_yiq @ hue_rotation @ to_yiq)
    out = torch.empty_like(images)
    block_size = CACHED_IMAGES if images.device.type == "cpu" else max(1, count)
    for start in range(0, count, block_size):
        block = slice(start, start + block_size)
        colors = images[block].flatten(2).float()  # [n, 3, H * W]
        # Contrast is relative to the image's mean brightness, which hue and saturation do not change.
        mean = brightness[block] * (to_yiq[0] @ colors.mean(2).T)
        offset = (mean * (1 - contrast[block]) + 0.5)[:, None, None].expand(-1, 3, 1)  # 0.5: uint8 truncates
        mixed = torch.baddbmm(offset, matrix[block], colors).clamp_(0, 255)
        out[block].flatten(2).copy_(mixed)
    return out


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


AUGMENTATIONS: dict[Augmentation, Callable[[Tensor, Tensor], Tensor]] = {
    "crop": crop,
    "cutout": cutout,
    "cutout_color": cutout_color,
    "random_conv": random_conv,
    "flip": flip,
    "rotate": rotate,
    "grayscale": grayscale,
    "color_jitter": color_jitter,
}
assert tuple(AUGMENTATIONS) == get_args(Augmentation)  # noqa: S101


def _scale_pixels(images: Tensor, pixels: int) -> int:
    """Scale a length for 64-pixel images to these images."""
    return max(1, round(pixels * min(images.shape[-2:]) / 64))


def _paint_rectangles(images: Tensor, key: Tensor, colors: Tensor) -> Tensor:
    """Return a copy with a random rectangle of each image painted in `colors` [N, C]."""
    lengths = torch.tensor(images.shape[-2:], device=images.device)
    sides = integers(key, 2, _scale_pixels(images, 7), _scale_pixels(images, 22))
    starts = (uniform(key, 2, stream=2) * (lengths - sides + 1)).long()
    # Slices are four times as fast on a CPU; on an accelerator each would be a kernel launch.
    paint = _paint_by_slices if images.device.type == "cpu" else _paint_by_pixels
    return paint(images, starts, starts + sides, colors)


def _paint_by_slices(images: Tensor, starts: Tensor, ends: Tensor, colors: Tensor) -> Tensor:
    out = images.numpy().copy()
    for image, (top, left), (bottom, right), color in zip(
        out, starts.tolist(), ends.tolist(), colors.numpy()[:, :, None, None], strict=True
    ):
        image[:, top:bottom, left:right] = color
    return torch.from_numpy(out)


def _paint_by_pixels(images: Tensor, starts: Tensor, ends: Tensor, colors: Tensor) -> Tensor:
    rows, columns = (
        (positions >= starts[:, axis, None]) & (positions < ends[:, axis, None])
        for axis, positions in enumerate(
            torch.arange(int(length), device=images.device) for length in images.shape[-2:]
        )
    )
    return torch.where((rows[:, :, None] & columns[:, None, :]).unsqueeze(1), colors[:, :, None, None], images)


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
