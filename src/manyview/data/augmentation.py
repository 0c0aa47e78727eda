"""Augmentations of images, each by a key.

`augment` makes the derived views that the paper adds to a Procgen screen. It takes images [N, C, H, W] uint8 and a key
[N], and returns images of the same shape and dtype. All randomness comes from the key: acting, training and resuming
see the same view, and only the camera's frame is stored. `augment_views` changes all views of a batch for DrAC. The
eight augmentations are those of Raileanu et al. (2020); their sizes are for 64 x 64 images and scale with the image.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from manyview.data.batch_augmentation import shift_views
from manyview.utils.counter_rng import integers, normal, uniform

Augmentation = Literal["crop", "cutout", "cutout_color", "random_conv", "flip", "rotate", "grayscale", "color_jitter"]
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


def augment_views(views: Tensor, key: Tensor, augmentation: Augmentation, *, frame_stack: int) -> Tensor:
    """Return `views` [B, V, C, H, W] uint8 changed by `augmentation`, each image by its `key` [B, V] int64.

    All stacked frames of an image change alike. Gray frames count as RGB with equal channels.
    """
    frames = views.unflatten(2, (frame_stack, -1)).flatten(0, 2)  # [B * V * stack, c, H, W]
    frame_key, channels = key.flatten().repeat_interleave(frame_stack), frames.shape[1]
    augmented = augment(frames.expand(-1, 3 if channels == 1 else -1, -1, -1), frame_key, augmentation)[:, :channels]
    if augmentation == "flip":  # PAPER: D43. Half of the images, as in the authors' code; a derived view always (D34).
        is_flipped = uniform(frame_key, 1)[..., None, None] < 0.5
        augmented = torch.where(is_flipped, augmented, frames)
    return augmented.reshape(views.shape)


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
    """Paint a random rectangle with sides of 7 to 21 pixels black."""
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
    sides = integers(key, 2, _scale_pixels(images, 7), _scale_pixels(images, 21))
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
