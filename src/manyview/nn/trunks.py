"""The multi-view encoder F_θ: Eq. 2 (shared and specific features) and Eq. 7 (the state)."""

from typing import Literal

import torch
from torch import Tensor, nn

Trunk = Literal["paper", "small", "tiny"]

# (filters, kernel, stride) of each convolution.
# PAPER: D1. "Four convolutional layers" is all the text says; sizes are those of the code bases it builds on.
TRUNKS: dict[Trunk, tuple[tuple[int, int, int], ...]] = {
    "paper": ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1)),
    "small": ((16, 4, 3), (32, 3, 2), (32, 3, 1)),  # steps that end at the border of 40 and of 64 pixels
    "tiny": ((16, 3, 2), (16, 3, 2)),
}


def make_trunk(image_shape: tuple[int, int, int], trunk: Trunk) -> tuple[nn.Sequential, int]:
    """The convolutions of a trunk for images [C, H, W], flattened, and how many features they give."""
    channels, height, width = image_shape
    layers: list[nn.Module] = []
    for filters, kernel, stride in TRUNKS[trunk]:
        if min(height, width) < kernel:
            raise ValueError(f"images of {image_shape[1]}x{image_shape[2]} are too small for the trunk {trunk!r}")
        layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU(inplace=True)]
        channels, height, width = filters, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return nn.Sequential(*layers, nn.Flatten()), channels * height * width


def normalize_images(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images of uint8 as networks take them, from -0.5 to 0.5."""
    # PAPER: D3. DrQ-v2's input scale. In place on the fresh copy: a new tensor each would cost 6 % of an update.
    return images.to(dtype).mul_(1 / 255).sub_(0.5)


def init_orthogonal(module: nn.Module, *, heads: int = 1) -> None:
    """DrQ-v2's initialisation: features that already differ between states before any training.

    Otherwise a policy runs into the flat end of its tanh before it can tell states apart (D27). `heads` lie side by
    side in one matrix.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.orthogonal_(module.weight, nn.init.calculate_gain("relu"))
    elif isinstance(module, nn.Linear):
        for head in module.weight.data.chunk(heads):
            nn.init.orthogonal_(head)
    bias = getattr(module, "bias", None)
    if bias is not None:
        nn.init.zeros_(bias)
