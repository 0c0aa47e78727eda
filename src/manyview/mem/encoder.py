"""The multi-view encoder F_θ: Eq. 2 (shared and specific features) and Eq. 7 (the state)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

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


class Features(NamedTuple):
    """What the encoder makes of a batch of multi-view observations. A tuple, so compile and export take it."""

    shared: Tensor  # [B, V, P]  x^i, zero where the view is absent
    specific: Tensor  # [B, V, P]  y^i, zero where the view is absent
    shared_mean: Tensor  # [B, P]  x̄, over the views that are present
    state: Tensor  # [B, (V + 1) * P]  s, what the policy acts on
    mask: Tensor  # [B, V] bool, which views are present

    @property
    def terms(self) -> Tensor:
        """The vectors whose entropy Eq. 9 measures, [B, V + 1, P]: y of every view, then x̄."""
        return torch.cat([self.specific, self.shared_mean.unsqueeze(1)], dim=1)

    @property
    def terms_mask(self) -> Tensor:
        """Which of the terms exist, [B, V + 1]; the shared mean does when any view is there."""
        return torch.cat([self.mask, self.mask.any(1, keepdim=True)], dim=1)

    def detach(self) -> "Features":
        return Features(*(tensor.detach() for tensor in self))


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


class Encoder(nn.Module):
    """One network for all views: they go through the convolutions as a single batch of B * V images.

    `absent_token` stands in the state where a view is missing, so that the policy sees "no camera" and not a guess.
    """

    def __init__(
        self,
        num_views: int,
        image_shape: tuple[int, int, int],  # channels (frames stacked), height, width
        *,
        latent_dim: int = 64,
        trunk: Trunk = "paper",
        affine_norm: bool = False,
    ) -> None:
        super().__init__()
        if num_views < 1:
            raise ValueError(f"expected at least one view, got {num_views}")
        self.num_views, self.image_shape, self.latent_dim = num_views, tuple(image_shape), latent_dim
        self.trunk, flat_dim = make_trunk(image_shape, trunk)
        # The two heads of the paper side by side in one matrix: the wide convolution output is read once.
        self.heads = nn.Linear(flat_dim, 2 * latent_dim)
        # PAPER: D2. No affine gain by default: the sparsity term could shrink it, and with it the reward, to zero.
        self.shared_norm = nn.LayerNorm(latent_dim, elementwise_affine=affine_norm)
        self.specific_norm = nn.LayerNorm(latent_dim, elementwise_affine=affine_norm)
        self.absent_token = nn.Parameter(torch.zeros(num_views, latent_dim))
        self.apply(partial(init_orthogonal, heads=2))

    @property
    def state_dim(self) -> int:
        return (self.num_views + 1) * self.latent_dim

    def forward(self, views: Tensor, mask: Tensor | None = None) -> Features:
        """Encode `views` [B, V, C, H, W] uint8; `mask` [B, V] bool says which are present (all, if not given)."""
        self._check_inputs(views, mask)
        if mask is None:
            mask = torch.ones(views.shape[:2], dtype=torch.bool, device=views.device)
        shared, specific = self.encode_images(views.flatten(0, 1))  # [B * V, P] each
        shared, specific = (f.unflatten(0, mask.shape) for f in (shared, specific))

        present = mask.unsqueeze(-1)  # [B, V, 1]
        shared = torch.where(present, shared, 0.0)
        specific_or_token = torch.where(present, specific, self.absent_token)
        specific = torch.where(present, specific, 0.0)
        shared_mean = shared.sum(1) / present.sum(1).clamp(min=1)
        state = torch.cat([specific_or_token.flatten(1), shared_mean], dim=1)  # Eq. 7
        return Features(shared, specific, shared_mean, state, mask)

    def encode_images(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 2 for images [N, C, H, W] uint8 of whichever view: (x, y), float32 even under autocast."""
        pixels = normalize_images(images, self.heads.weight.dtype)
        shared, specific = self.heads(self.trunk(pixels)).float().chunk(2, dim=-1)
        return self.shared_norm(shared), self.specific_norm(specific)

    def _check_inputs(self, views: Tensor, mask: Tensor | None) -> None:
        expected = (self.num_views, *self.image_shape)
        if views.ndim != 5 or tuple(views.shape[1:]) != expected:
            raise ValueError(
                f"expected views [B, V, C, H, W] = [B, {', '.join(map(str, expected))}], got {list(views.shape)}"
            )
        if views.dtype != torch.uint8:
            raise TypeError(f"expected uint8 images from 0 to 255, got {views.dtype}; the encoder scales them itself")
        if mask is None:
            return
        if mask.shape != views.shape[:2] or mask.dtype != torch.bool:
            raise ValueError(
                f"expected a bool mask [B, V] = {list(views.shape[:2])}, got {mask.dtype} {list(mask.shape)}"
            )
        # Reading the mask waits for the device, and a compiled graph cannot raise: there such a row is all tokens.
        if not torch.compiler.is_compiling() and not bool(mask.any(1).all()):
            rows = (~mask.any(1)).nonzero().flatten().tolist()
            raise ValueError(f"every view is absent in row {rows[0]} ({len(rows)} such rows): drop these observations")


def stack_views(images: Mapping[str, Tensor], names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Named images [B, C, H, W] as `views` [B, V, C, H, W] and `mask` [B, V]; names without an image are absent."""
    unknown = sorted(set(images) - set(names))
    if unknown:
        raise KeyError(f"unknown views {unknown}; expected some of {list(names)}")
    if not images:
        raise ValueError(f"every view is absent: expected at least one of {list(names)}")
    shapes = {name: tuple(image.shape) for name, image in images.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"expected images of one shape, got {shapes}")
    reference = next(iter(images.values()))
    views = torch.stack([images.get(name, torch.zeros_like(reference)) for name in names], dim=1)
    present = torch.tensor([name in images for name in names], device=views.device)
    return views, present.repeat(len(views), 1)


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
