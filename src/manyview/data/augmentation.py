"""Derived views on tensors: the augmentations of which the paper makes further views of a Procgen screen.

Each takes images [N, C, H, W] uint8 and a key [N] for each, and gives images of the same shape and type. All that is
random about an image comes from its key: acting, training and resuming see the same view, and only the camera's frame
is stored. The eight are those of Raileanu et al. (2020); sizes are for 64 x 64, and scale with the image.
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
LUMA = (38, 75, 15)
"""Red, green and blue in what the eye calls bright, of 128: in 16 bits nothing is lost (ITU-R BT.601)."""


def augment(images: Tensor, key: Tensor, augmentation: Augmentation) -> Tensor:
    """The derived view `augmentation` of images [N, C, H, W] uint8, each with its own key."""
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise TypeError(f"expected images [N, C, H, W] uint8, got {list(images.shape)} {images.dtype}")
    if key.shape != images.shape[:1] or key.dtype != torch.int64:
        raise ValueError(f"expected a key for each of {len(images)} images, got {list(key.shape)} {key.dtype}")
    check_image_shape(augmentation, (images.shape[1], images.shape[2], images.shape[3]))
    with torch.autocast(images.device.type, enabled=False):  # the same picture whoever asks for it
        return AUGMENTATIONS[augmentation](images, key)


def check_image_shape(augmentation: Augmentation, image_shape: tuple[int, int, int]) -> None:
    """Say before anything runs that images [C, H, W] cannot be changed so."""
    channels, height, width = image_shape
    if augmentation in ("grayscale", "color_jitter") and channels != 3:
        raise ValueError(f"{augmentation} needs images of three colours, and of one frame: got {channels} channels")
    if augmentation == "rotate" and height != width:
        raise ValueError(f"rotate needs square images, got {height}x{width}")


def crop(images: Tensor, key: Tensor) -> Tensor:
    """As large as before, of an image with 12 pixels more on each side, which repeat the border."""
    max_shift = _scale_pixels(images, 12)
    return shift_views(images.unsqueeze(1), integers(key, 2, -max_shift, max_shift).T.unsqueeze(-1)).squeeze(1)


def cutout(images: Tensor, key: Tensor) -> Tensor:
    """A rectangle of 7 to 22 pixels a side is black; it lies anywhere inside."""
    return _paint_rectangles(images, key, torch.zeros(images.shape[:2], dtype=torch.uint8, device=images.device))


def cutout_color(images: Tensor, key: Tensor) -> Tensor:
    """The rectangle of `cutout` in a random colour."""
    return _paint_rectangles(images, key, integers(key, images.shape[1], 0, 255, stream=1).to(torch.uint8))


def random_conv(images: Tensor, key: Tensor) -> Tensor:
    """A random 3 x 3 convolution, brought back between 0 and 255 by a sigmoid: shapes stay, colours go."""
    count, channels, height, width = images.shape
    std = (2 / (9 * (channels + channels))) ** 0.5  # Xavier's
    weights = normal(key, channels * channels * 9).view(count * channels, channels, 3, 3) * std
    padded = F.pad(images.float().mul_(1 / 255), (1, 1, 1, 1), mode="replicate")
    mixed = F.conv2d(padded.view(1, count * channels, height + 2, width + 2), weights, groups=count)
    return mixed.sigmoid_().mul_(255).round_().to(torch.uint8).view(images.shape)


def flip(images: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
    """The mirror image."""
    # PAPER: D34. Always: with a coin half of the view would be a copy of the camera's.
    return images.flip(-1)


def rotate(images: Tensor, key: Tensor) -> Tensor:
    """Turned by a random multiple of 90 degrees, 0 included."""
    turns, out = integers(key, 1, 0, 3).squeeze(1), torch.empty_like(images)
    for quarter in range(4):
        rows = turns == quarter
        out[rows] = torch.rot90(images[rows], quarter, (-2, -1))
    return out


def grayscale(images: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
    """The brightness, in every channel."""
    # PAPER: D34. Always, as `flip`.
    red, green, blue = (images[:, channel].short() for channel in range(3))
    gray = red.mul_(LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2]).bitwise_right_shift_(7)
    return torch.empty_like(images).copy_(gray.unsqueeze(1))


CACHED_IMAGES = 32
"""Images whose colours as floats stay in a core's cache: 1.6 times as fast as all at once."""


def color_jitter(images: Tensor, key: Tensor) -> Tensor:
    """Brightness, contrast and saturation times 0.6 to 1.4, and the hue turned by any angle: one matrix for an image.

    The hue turns in the plane of the colour differences of YIQ, which is linear and leaves the brightness alone.
    """
    count = len(images)
    brightness, contrast, saturation = (0.6 + 0.8 * uniform(key, 3)).T.unbind()
    angle = 2 * torch.pi * uniform(key, 1, stream=1).squeeze(1)
    to_yiq, from_yiq = (table.to(images.device) for table in (TO_YIQ, FROM_YIQ))
    turn = torch.zeros(count, 3, 3, device=images.device)
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = saturation * angle.cos()
    turn[:, 2, 1] = saturation * angle.sin()
    turn[:, 1, 2] = -turn[:, 2, 1]
    matrix = (brightness * contrast)[:, None, None] * (from_yiq @ turn @ to_yiq)
    out = torch.empty_like(images)
    block_size = CACHED_IMAGES if images.device.type == "cpu" else max(1, count)
    for start in range(0, count, block_size):
        block = slice(start, start + block_size)
        colours = images[block].flatten(2).float()  # [n, 3, H * W]
        # Contrast is measured from the mean brightness of the image, which turns and saturation do not change.
        mean = brightness[block] * (to_yiq[0] @ colours.mean(2).T)
        offset = (mean * (1 - contrast[block]) + 0.5)[:, None, None].expand(-1, 3, 1)  # and half: bytes cut off
        mixed = torch.baddbmm(offset, matrix[block], colours).clamp_(0, 255)
        out[block].flatten(2).copy_(mixed)
    return out


TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
FROM_YIQ = torch.linalg.inv(TO_YIQ)

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
    """Of an image of 64 pixels, for this one."""
    return max(1, round(pixels * min(images.shape[-2:]) / 64))


def _paint_rectangles(images: Tensor, key: Tensor, colours: Tensor) -> Tensor:
    """A copy with a random rectangle of each image in its colour [N, C]."""
    lengths = torch.tensor(images.shape[-2:], device=images.device)
    sides = integers(key, 2, _scale_pixels(images, 7), _scale_pixels(images, 22))
    starts = (uniform(key, 2, stream=2) * (lengths - sides + 1)).long()
    # Slices are four times as fast on a CPU; an accelerator would make each of them by itself.
    paint = _paint_by_slices if images.device.type == "cpu" else _paint_by_pixels
    return paint(images, starts, starts + sides, colours)


def _paint_by_slices(images: Tensor, starts: Tensor, ends: Tensor, colours: Tensor) -> Tensor:
    out = images.numpy().copy()
    for image, (top, left), (bottom, right), colour in zip(
        out, starts.tolist(), ends.tolist(), colours.numpy()[:, :, None, None], strict=True
    ):
        image[:, top:bottom, left:right] = colour
    return torch.from_numpy(out)


def _paint_by_pixels(images: Tensor, starts: Tensor, ends: Tensor, colours: Tensor) -> Tensor:
    rows, columns = (
        (positions >= starts[:, axis, None]) & (positions < ends[:, axis, None])
        for axis, positions in enumerate(
            torch.arange(int(length), device=images.device) for length in images.shape[-2:]
        )
    )
    return torch.where((rows[:, :, None] & columns[:, None, :]).unsqueeze(1), colours[:, :, None, None], images)


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
