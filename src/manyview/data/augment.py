"""Derived views on tensors: the augmentations of which the paper makes further views of a Procgen screen.

Each takes images [N, C, H, W] uint8 and a key [N] for each, and gives images of the same shape and type. All that is
random about an image comes from its key: acting, training and resuming see the same view, and only the camera's frame
is stored. The eight are those of Raileanu et al. (2020); sizes are for 64 x 64, and scale with the image.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from manyview.data.draws import integers, normal, uniform
from manyview.data.shift import shift

Augmentation = Literal["crop", "cutout", "cutout_color", "random_conv", "flip", "rotate", "grayscale", "color_jitter"]
LUMA = (38, 75, 15)
"""Red, green and blue in what the eye calls bright, of 128: in 16 bits nothing is lost (ITU-R BT.601)."""


def augment(images: Tensor, key: Tensor, how: Augmentation) -> Tensor:
    """The derived view `how` of images [N, C, H, W] uint8, each with its own key."""
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise TypeError(f"expected images [N, C, H, W] uint8, got {list(images.shape)} {images.dtype}")
    if key.shape != images.shape[:1] or key.dtype != torch.int64:
        raise ValueError(f"expected a key for each of {len(images)} images, got {list(key.shape)} {key.dtype}")
    refuse_unfit(how, (images.shape[1], images.shape[2], images.shape[3]))
    with torch.autocast(images.device.type, enabled=False):  # the same picture whoever asks for it
        return AUGMENTATIONS[how](images, key)


def refuse_unfit(how: Augmentation, image: tuple[int, int, int]) -> None:
    """Say before anything runs that images [C, H, W] cannot be changed so."""
    channels, height, width = image
    if how in ("grayscale", "color_jitter") and channels != 3:
        raise ValueError(f"{how} needs images of three colours, and of one frame: got {channels} channels")
    if how == "rotate" and height != width:
        raise ValueError(f"rotate needs square images, got {height}x{width}")


def crop(images: Tensor, key: Tensor) -> Tensor:
    """As large as before, of an image with 12 pixels more on each side, which repeat the border."""
    most = _scaled(images, 12)
    return shift(images.unsqueeze(1), integers(key, 2, -most, most).T.unsqueeze(-1)).squeeze(1)


def cutout(images: Tensor, key: Tensor) -> Tensor:
    """A rectangle of 7 to 22 pixels a side is black; it lies anywhere inside."""
    return _painted(images, key, torch.zeros(images.shape[:2], dtype=torch.uint8, device=images.device))


def cutout_color(images: Tensor, key: Tensor) -> Tensor:
    """The rectangle of `cutout` in a random colour."""
    return _painted(images, key, integers(key, images.shape[1], 0, 255, stream=1).to(torch.uint8))


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


CACHED = 32
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
    at_once = CACHED if images.device.type == "cpu" else max(1, count)
    for begin in range(0, count, at_once):
        some = slice(begin, begin + at_once)
        colours = images[some].flatten(2).float()  # [n, 3, H * W]
        # Contrast is measured from the mean brightness of the image, which turns and saturation do not change.
        mean = brightness[some] * (to_yiq[0] @ colours.mean(2).T)
        offset = (mean * (1 - contrast[some]) + 0.5)[:, None, None].expand(-1, 3, 1)  # and half: bytes cut off
        mixed = torch.baddbmm(offset, matrix[some], colours).clamp_(0, 255)
        out[some].flatten(2).copy_(mixed)
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


def _scaled(images: Tensor, pixels: int) -> int:
    """Of an image of 64 pixels, for this one."""
    return max(1, round(pixels * min(images.shape[-2:]) / 64))


def _painted(images: Tensor, key: Tensor, colours: Tensor) -> Tensor:
    """A copy with a random rectangle of each image in its colour [N, C]."""
    lengths = torch.tensor(images.shape[-2:], device=images.device)
    sides = integers(key, 2, _scaled(images, 7), _scaled(images, 22))
    begins = (uniform(key, 2, stream=2) * (lengths - sides + 1)).long()
    # Slices are four times as fast on a CPU; an accelerator would make each of them by itself.
    paint = _painted_by_slices if images.device.type == "cpu" else _painted_by_pixels
    return paint(images, begins, begins + sides, colours)


def _painted_by_slices(images: Tensor, begins: Tensor, ends: Tensor, colours: Tensor) -> Tensor:
    out = images.numpy().copy()
    for image, (top, left), (bottom, right), colour in zip(
        out, begins.tolist(), ends.tolist(), colours.numpy()[:, :, None, None], strict=True
    ):
        image[:, top:bottom, left:right] = colour
    return torch.from_numpy(out)


def _painted_by_pixels(images: Tensor, begins: Tensor, ends: Tensor, colours: Tensor) -> Tensor:
    rows, columns = (
        (places >= begins[:, axis, None]) & (places < ends[:, axis, None])
        for axis, places in enumerate(torch.arange(int(length), device=images.device) for length in images.shape[-2:])
    )
    return torch.where((rows[:, :, None] & columns[:, None, :]).unsqueeze(1), colours[:, :, None, None], images)
