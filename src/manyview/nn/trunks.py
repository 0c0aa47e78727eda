"""Convolutional trunks, their input scale and their initialization."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Trunk = Literal["paper", "small", "tiny", "tiny_diff", "nature", "impala", "impala_half", "area"]
Convolutions = tuple[tuple[int, int, int], ...]
"""Filters, kernel and stride of each convolution."""

# PAPER: D1. The text says only "four convolutional layers"; the sizes are those of the code bases it builds on.
TRUNKS: dict[Trunk, Convolutions] = {
    "paper": ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1)),
    "small": ((16, 4, 3), (32, 3, 2), (32, 3, 1)),  # reaches the border of 40 and 64 pixels; see _get_convolutions
    "tiny": ((16, 3, 2), (16, 3, 2)),
    "tiny_diff": ((16, 3, 2), (16, 3, 2)),  # the first is a `DifferenceConv2d`
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. (2015)
    "impala": ((16, 3, 2), (32, 3, 2), (32, 3, 2)),  # Espeholt et al. (2018)
    "impala_half": ((8, 3, 2), (16, 3, 2), (16, 3, 2)),
    "area": ((32, 4, 2), (64, 4, 1)),  # Squint (2026), for area-averaged images of 16 to 32 pixels
}
RESIDUAL_TRUNKS: tuple[Trunk, ...] = ("impala", "impala_half")
"""Trunks whose stride is that of a max-pooling, followed by two residual blocks."""


DIFFERENCE_SCALE = 4.0
FRAME_CHANNELS = 3
"""Channels of a frame whose differences are taken; gray frames cannot be told from colors in a stack."""


class DifferenceConv2d(nn.Conv2d):
    """Convolution of a stack in which each frame but the newest is replaced by the scaled change to the next one.

    Between two frames few pixels change, and little; unscaled, a convolution learns slowly from them. The changes are
    linear in the frames, so they are taken of the weights: of the images they would take a tenth of an update.
    """

    def forward(self, images: Tensor) -> Tensor:
        # In the weight's type also under autocast: bfloat16 would round the frames before they are subtracted.
        with torch.autocast(images.device.type, enabled=False):
            return F.conv2d(images.to(self.weight.dtype), self.compute_frame_weight(), self.bias, self.stride)

    def compute_frame_weight(self) -> Tensor:
        """Return the weight [filters, C, kernel, kernel] that has on frames the effect of `weight` on changes."""
        of_changes = DIFFERENCE_SCALE * self.weight[:, :-FRAME_CHANNELS]
        of_newest = self.weight[:, -FRAME_CHANNELS:]
        later = torch.cat([torch.zeros_like(of_newest), of_changes], dim=1)
        return later - torch.cat([of_changes, -of_newest], dim=1)


class ResidualBlock(nn.Sequential):
    """Two 3x3 convolutions, each after a ReLU, added to the input."""

    def __init__(self, channels: int) -> None:
        convolutions = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)]
        # The first ReLU must not be in place: it would change what is added.
        super().__init__(nn.ReLU(), convolutions[0], nn.ReLU(inplace=True), convolutions[1])

    def forward(self, inputs: Tensor) -> Tensor:
        residual: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
        return inputs + residual


class ResidualTrunk(nn.Sequential):
    """Convolutions with max-pooling and residual blocks, channels-last on a CPU.

    There both directions take half to two thirds of the time, most of it saved in the max-pooling.
    """

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type == "cpu":
            images = images.contiguous(memory_format=torch.channels_last)
        features: Tensor = super().forward(images)  # type: ignore[no-untyped-call]
        return features


def make_trunk(image_shape: tuple[int, int, int], trunk: Trunk) -> tuple[nn.Sequential, int]:
    """Return a trunk for images [C, H, W] with flat output, and its number of features.

    Raises ValueError if the images are smaller than a kernel, or are no frames in color for `tiny_diff`.
    """
    channels, height, width = image_shape
    is_residual = trunk in RESIDUAL_TRUNKS
    if trunk == "tiny_diff" and channels % FRAME_CHANNELS:
        raise ValueError(
            f"the trunk 'tiny_diff' needs frames of {FRAME_CHANNELS} channels: expected a multiple of {FRAME_CHANNELS} "
            f"channels, got {channels}. Use 'tiny'."
        )
    layers: list[nn.Module] = []
    for index, (filters, kernel, stride) in enumerate(_get_convolutions(image_shape, trunk), start=1):
        if min(height, width) < kernel:
            raise ValueError(
                f"images of {image_shape[1]}x{image_shape[2]} are too small for the trunk {trunk!r}: expected at least "
                f"{kernel}x{kernel} at convolution {index}, got {height}x{width}. Use larger images or a smaller trunk."
            )
        padding = kernel // 2 if is_residual else 0
        if is_residual:
            layers += [nn.Conv2d(channels, filters, kernel, padding=padding), nn.MaxPool2d(kernel, stride, padding)]
            layers += [ResidualBlock(filters), ResidualBlock(filters)]
        else:
            convolution = DifferenceConv2d if trunk == "tiny_diff" and index == 1 else nn.Conv2d
            layers += [convolution(channels, filters, kernel, stride), nn.ReLU(inplace=True)]
        height, width = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
        channels = filters
    if is_residual:
        layers.append(nn.ReLU(inplace=True))
    sequential = ResidualTrunk if is_residual else nn.Sequential
    return sequential(*layers, nn.Flatten()), channels * height * width


def _get_convolutions(image_shape: tuple[int, int, int], trunk: Trunk) -> Convolutions:
    if trunk == "small" and max(image_shape[1:]) < 36:
        # Stride 3 leaves 128 features of a 32-pixel image and does not reach its last four rows; stride 2 leaves 800.
        return (16, 4, 2), (32, 3, 2), (32, 3, 1)
    if trunk == "area" and max(image_shape[1:]) > 25:
        # Stride 1 gives 1,024 features at 16 pixels, 4,096 at 25 and 9,216 at 32; stride 2 gives 2,304 at 32.
        return (32, 4, 2), (64, 4, 2)
    return TRUNKS[trunk]


def normalize_images(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scale uint8 images [N, C, H, W] to [-0.5, 0.5]; channels-last on a CPU while gradients are recorded."""
    if images.device.type == "cpu" and torch.is_grad_enabled():
        # Forward and backward pass take 0.62 to 0.94 of the time; most forward passes alone would take longer.
        images = images.contiguous(memory_format=torch.channels_last)
    # PAPER: D3. DrQ-v2's input scale. In place on the new copy: more copies would cost 6 % of an update.
    return images.to(dtype).mul_(1 / 255).sub_(0.5)


def init_orthogonal(module: nn.Module, *, heads: int = 1) -> None:
    """Initialize a module as DrQ-v2 does: orthogonal weights, zero biases.

    Features then differ between states before any training; otherwise the policy's tanh saturates before it can tell
    states apart (D27). A linear layer may hold several `heads` in one matrix, each initialized separately.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.orthogonal_(module.weight, nn.init.calculate_gain("relu"))
    elif isinstance(module, nn.Linear):
        for head in module.weight.data.chunk(heads):
            nn.init.orthogonal_(head)
    bias = getattr(module, "bias", None)
    if bias is not None:
        nn.init.zeros_(bias)
