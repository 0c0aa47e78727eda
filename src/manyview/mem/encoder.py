"""Multi-view encoder F_θ: Eq. 2 (shared and specific features) and Eq. 7 (state)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyview.nn.trunks import Trunk, init_orthogonal, make_trunk, normalize_images


class Features(NamedTuple):
    """Features of a batch of multi-view observations; a tuple, for torch.compile and export."""

    shared: Tensor  # [B, V, P]  x^i, zero where the view is absent
    specific: Tensor  # [B, V, P]  y^i, zero where the view is absent
    shared_mean: Tensor  # [B, P]  x̄, over the views that are present
    state: Tensor  # [B, (V + 1) * P]  s, input of the policy
    mask: Tensor  # [B, V] bool, true where the view is present

    @property
    def terms(self) -> Tensor:
        """Vectors whose entropy Eq. 9 estimates, [B, V + 1, P]: y of every view, then x̄."""
        return torch.cat([self.specific, self.shared_mean.unsqueeze(1)], dim=1)

    @property
    def terms_mask(self) -> Tensor:
        """Mask of `terms`, [B, V + 1]; the shared mean is present when any view is."""
        return torch.cat([self.mask, self.mask.any(1, keepdim=True)], dim=1)

    def detach(self) -> "Features":
        return Features(*(tensor.detach() for tensor in self))


class Encoder(nn.Module):
    """Encoder F_θ, one network for all views.

    The convolutions process all views as a single batch of B * V images. In the state, a learned `absent_token`
    replaces the specific features of an absent view, so that the policy can tell that the camera is missing.
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
        # Both heads of the paper in one matrix: the large convolution output is read once.
        self.heads = nn.Linear(flat_dim, 2 * latent_dim)
        # PAPER: D2. No affine gain by default: the sparsity term could shrink it, and with it the reward, to zero.
        self.norm = nn.LayerNorm(latent_dim, elementwise_affine=False)  # of both heads in one call
        self.gain = nn.Parameter(torch.ones(2, latent_dim)) if affine_norm else None
        self.offset = nn.Parameter(torch.zeros(2, latent_dim)) if affine_norm else None
        self.absent_token = nn.Parameter(torch.zeros(num_views, latent_dim))
        self.apply(partial(init_orthogonal, heads=2))

    @property
    def state_dim(self) -> int:
        return (self.num_views + 1) * self.latent_dim

    def forward(self, views: Tensor, mask: Tensor | None = None) -> Features:
        """Encode `views` [B, V, C, H, W] uint8; `mask` [B, V] bool marks present views (default: all)."""
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
        """Return (x, y) of Eq. 2, [N, P] each, for images [N, C, H, W] uint8.

        Both are float32, even under autocast.
        """
        pixels = normalize_images(images, self.heads.weight.dtype)
        features = self.norm(self.heads(self.trunk(pixels)).float().unflatten(-1, (2, self.latent_dim)))  # [N, 2, P]
        if self.gain is not None and self.offset is not None:
            features = features * self.gain + self.offset
        return features[:, 0], features[:, 1]

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
        # Reading the mask synchronizes the device, and a compiled graph cannot raise: there such a row is all tokens.
        if not torch.compiler.is_compiling() and not bool(mask.any(1).all()):
            rows = (~mask.any(1)).nonzero().flatten().tolist()
            raise ValueError(f"every view is absent in row {rows[0]} ({len(rows)} such rows): drop these observations")


def stack_views(images: Mapping[str, Tensor], names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Stack named images [B, C, H, W] to `views` [B, V, C, H, W] and `mask` [B, V].

    A name in `names` without an image is an absent view.
    """
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
