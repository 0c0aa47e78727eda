"""Baseline encoder without an auxiliary loss, trained by the agent's losses alone."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyview.methods.interfaces import BuildContext, RunSettings
from manyview.methods.registry import register_representation
from manyview.nn.trunks import Trunk, init_orthogonal, make_trunk, normalize_images
from manyview.utils.validation import MAX_UNITS, check_at_least, check_at_most, check_choices


@dataclass(frozen=True, kw_only=True)
class PixelEncoderConfig:
    """Settings of the pixel encoder."""

    latent_dim: int = 64
    """Feature dimension per view, with `projection`."""
    trunk: Trunk = "paper"
    """Convolutions, see `representation=mem`."""
    projection: bool = True
    """Project the convolutions' output to `latent_dim` features; `false` gives it to the agent as it is."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "latent_dim")
        check_at_most(self, MAX_UNITS, "latent_dim")

    def check(self, run: RunSettings) -> None:
        """Check that the agent trains the encoder."""
        if type(self) is PixelEncoderConfig:  # a config derived from it may be of an encoder with a loss
            check_critic_trains_encoder(run)


def check_critic_trains_encoder(run: RunSettings) -> None:
    """Check that the critic's loss trains a representation without an auxiliary loss."""
    if not getattr(run.agent, "critic_trains_encoder", True):
        raise ValueError(
            f"nothing would train the encoder: representation={run.representation_name} has no auxiliary loss, "
            "expected agent.critic_trains_encoder=true, got false"
        )


class PixelFeatures(NamedTuple):
    """Features of the pixel encoder."""

    state: Tensor  # [B, V * P], with P the flat size of the convolutions' output if there is no projection
    mask: Tensor  # [B, V]


def make_head(flat_dim: int, config: PixelEncoderConfig) -> tuple[nn.Module, int]:
    """Return DrQ-v2's projection of `flat_dim` features, or the identity, and the size of its output."""
    if not config.projection:
        return nn.Identity(), flat_dim
    layers = nn.Linear(flat_dim, config.latent_dim), nn.LayerNorm(config.latent_dim), nn.Tanh()
    return nn.Sequential(*layers), config.latent_dim


class PixelEncoder(nn.Module):
    """Encoder of all views: convolutions, then DrQ-v2's projection unless the agent has it.

    A learned token replaces an absent view in the state, as in MEM.
    """

    uses_next_features = False

    def __init__(
        self, num_views: int, image_shape: tuple[int, int, int], config: PixelEncoderConfig | None = None
    ) -> None:
        super().__init__()
        config = config or PixelEncoderConfig()
        self.trunk, flat_dim = make_trunk(image_shape, config.trunk)
        self.head, latent_dim = make_head(flat_dim, config)
        self.absent_token = nn.Parameter(torch.zeros(num_views, latent_dim))
        self.state_dim = num_views * latent_dim
        self.apply(init_orthogonal)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> PixelFeatures:
        return self.project(self.convolve(views), mask)

    def convolve(self, views: Tensor) -> Tensor:
        """Return the flat outputs [B, V, D] of the convolutions for `views` [B, V, C, H, W] uint8."""
        pixels = normalize_images(views.flatten(0, 1), self.absent_token.dtype)
        convolved: Tensor = self.trunk(pixels).unflatten(0, views.shape[:2])
        return convolved

    def project(self, convolved: Tensor, mask: Tensor | None = None) -> PixelFeatures:
        """Return the features of outputs [B, V, D] of the convolutions."""
        if mask is None:
            mask = torch.ones(convolved.shape[:2], dtype=torch.bool, device=convolved.device)
        latent = self.head(convolved.flatten(0, 1)).float().unflatten(0, mask.shape)
        return PixelFeatures(torch.where(mask.unsqueeze(-1), latent, self.absent_token).flatten(1), mask)

    def compute_loss(
        self,
        features: PixelFeatures,
        next_features: PixelFeatures | None,  # noqa: ARG002
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return features.state.new_zeros(()), {}


@register_representation("pixel", PixelEncoderConfig)
def build_pixel(config: PixelEncoderConfig, context: BuildContext) -> PixelEncoder:
    """Build the pixel encoder."""
    return PixelEncoder(context.num_views, context.image_shape, config)
