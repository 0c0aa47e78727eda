"""Convolutional trunks, their input scale and their initialization."""

from typing import Literal

import torch
from torch import Tensor, nn

Trunk = Literal["paper", "small", "tiny"]

# (filters, kernel, stride) of each convolution.
# PAPER: D1. The text says only "four convolutional layers"; the sizes are those of the code bases it builds on.
TRUNKS: dict[Trunk, tuple[tuple[int, int, int], ...]] = {
    "paper": ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1)),
    "small": ((16, 4, 3), (32, 3, 2), (32, 3, 1)),  # strides that reach the border of 40- and 64-pixel images
    "tiny": ((16, 3, 2), (16, 3, 2)),
}


def make_trunk(image_shape: tuple[int, int, int], trunk: Trunk) -> tuple[nn.Sequential, int]:
    """Return a trunk for images [C, H, W] with flat output, and its number of features.

    Raises ValueError if the images are smaller than a kernel.
    """
    channels, height, width = image_shape
    layers: list[nn.Module] = []
    for filters, kernel, stride in TRUNKS[trunk]:
        if min(height, width) < kernel:
            raise ValueError(
                f"images of {image_shape[1]}x{image_shape[2]} are too small for the trunk {trunk!r}: expected at least "
                f"{kernel}x{kernel} at convolution {len(layers) // 2 + 1}, got {height}x{width}. Use larger images or "
                "a smaller trunk."
            )
        layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU(inplace=True)]
        channels, height, width = filters, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return nn.Sequential(*layers, nn.Flatten()), channels * height * width


def normalize_images(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scale uint8 images to [-0.5, 0.5]."""
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
