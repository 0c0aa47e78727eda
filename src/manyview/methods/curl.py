"""CURL: two shifts of an observation agree, and differ from the others of the batch (Laskin et al., 2020)."""

from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.data.shift import random_shift
from manyview.mem.choices import MOST_UNITS, refuse_above, refuse_below, refuse_outside_0_to_1, refuse_unknown_choices
from manyview.mem.encoder import Trunk
from manyview.methods.follow import soft_update
from manyview.methods.plain import Plain, PlainConfig


@dataclass(frozen=True, kw_only=True)
class CURLConfig:
    latent_dim: int = 50
    """Features of a view."""
    trunk: Trunk = "paper"
    """Its convolutions, see `mem.trunk`."""
    momentum: float = 0.05
    """How far the key encoder follows at each update."""
    shift_pixels: int = 4
    """Of the second look at an observation."""

    def __post_init__(self) -> None:
        refuse_unknown_choices(self)
        refuse_below(self, 1, "latent_dim")
        refuse_above(self, MOST_UNITS, "latent_dim")
        refuse_below(self, 0, "shift_pixels")
        refuse_outside_0_to_1(self, "momentum")


class CURLFeatures(NamedTuple):
    state: Tensor  # [B, V * P]
    mask: Tensor  # [B, V]
    views: Tensor  # [B, V, C, H, W] uint8, of which `loss` makes another shift


class CURL(nn.Module):
    """The plain encoder with a contrastive loss: bilinear similarity to a slowly following copy of it."""

    def __init__(
        self,
        num_views: int,
        image_shape: tuple[int, int, int],
        config: CURLConfig | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.config = config = config or CURLConfig()
        plain = PlainConfig(latent_dim=config.latent_dim, trunk=config.trunk)
        self.encoder = Plain(num_views, image_shape, plain)
        self.follower = deepcopy(self.encoder).requires_grad_(False)
        self.similarity = nn.Parameter(torch.rand(self.state_dim, self.state_dim) / self.state_dim)
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def state_dim(self) -> int:
        return self.encoder.state_dim

    def encode(self, views: Tensor, mask: Tensor | None = None) -> CURLFeatures:
        state, mask = self.encoder.encode(views, mask)
        return CURLFeatures(state, mask, views)

    def loss(self, features: CURLFeatures, later: CURLFeatures | None) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        """InfoNCE over the batch. Moves the follower, as batch norm moves its statistics."""
        with torch.no_grad():
            soft_update(self.encoder, self.follower, self.config.momentum)
            other = random_shift(features.views, self.config.shift_pixels, self.generator)
            key = self.follower.encode(other, features.mask).state
        with torch.autocast(key.device.type, enabled=False):
            logits = features.state @ self.similarity @ key.t()  # [B, B]
        loss = F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))
        return loss, {"curl_loss": loss.detach()}
