"""No method: an encoder that the agent's own losses train, as in the base agents."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyview.mem.choices import MOST_UNITS, refuse_above, refuse_below, refuse_unknown_choices
from manyview.mem.encoder import Trunk, convolutions, orthogonal_init, to_pixels


@dataclass(frozen=True, kw_only=True)
class PlainConfig:
    latent_dim: int = 64
    """Features of a view."""
    trunk: Trunk = "paper"
    """Its convolutions, see `mem.trunk`."""

    def __post_init__(self) -> None:
        refuse_unknown_choices(self)
        refuse_below(self, 1, "latent_dim")
        refuse_above(self, MOST_UNITS, "latent_dim")


class PlainFeatures(NamedTuple):
    state: Tensor  # [B, V * P]
    mask: Tensor  # [B, V]


class Plain(nn.Module):
    """One network for all views: convolutions, then DrQ-v2's trunk (a linear layer, LayerNorm, tanh).

    An absent view is a learned token in the state, as in MEM.
    """

    def __init__(self, num_views: int, image_shape: tuple[int, int, int], config: PlainConfig | None = None) -> None:
        super().__init__()
        config = config or PlainConfig()
        latent_dim = config.latent_dim
        self.convolutions, flat_dim = convolutions(image_shape, config.trunk)
        self.head = nn.Sequential(nn.Linear(flat_dim, latent_dim), nn.LayerNorm(latent_dim), nn.Tanh())
        self.absent_token = nn.Parameter(torch.zeros(num_views, latent_dim))
        self.state_dim = num_views * latent_dim
        self.apply(orthogonal_init)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> PlainFeatures:
        if mask is None:
            mask = torch.ones(views.shape[:2], dtype=torch.bool, device=views.device)
        pixels = to_pixels(views.flatten(0, 1), self.absent_token.dtype)
        latent = self.head(self.convolutions(pixels)).float().unflatten(0, mask.shape)
        return PlainFeatures(torch.where(mask.unsqueeze(-1), latent, self.absent_token).flatten(1), mask)

    def loss(self, features: PlainFeatures, later: PlainFeatures | None) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        return features.state.new_zeros(()), {}
