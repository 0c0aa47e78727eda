"""Autoencoder: the state must reconstruct small images of the views."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.methods import BuildContext, PixelEncoder, PixelEncoderConfig, register_representation
from manyview.nn.trunks import normalize_images
from manyview.utils.validation import check_at_least, check_positive


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig(PixelEncoderConfig):
    """Settings of the representation; `latent_dim` and `trunk` are inherited."""

    target_size: int = 8
    """Height and width of the reconstructed images, in pixels."""
    loss_coef: float = 1.0
    """Weight of the reconstruction loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "target_size")
        check_positive(self, "loss_coef")


class AutoencoderFeatures(NamedTuple):
    """Features of a batch; `state` and `mask` are those that agents and rollout buffers use."""

    state: Tensor  # [B, V * P]
    mask: Tensor  # [B, V]
    target: Tensor  # [B, V, size, size], channels averaged


@register_representation("autoencoder", AutoencoderConfig)
class Autoencoder(nn.Module):
    """Pixel encoder with a linear decoder."""

    uses_next_features = False

    def __init__(self, config: AutoencoderConfig, context: BuildContext) -> None:
        super().__init__()
        self.config = config
        self.encoder = PixelEncoder(context.num_views, context.image_shape, config)
        self.state_dim = self.encoder.state_dim
        self.decoder = nn.Linear(self.state_dim, context.num_views * config.target_size**2)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> AutoencoderFeatures:
        state, mask = self.encoder.encode(views, mask)
        images = normalize_images(views.flatten(0, 1)).mean(1)  # [B * V, H, W]
        target = F.adaptive_avg_pool2d(images, self.config.target_size).unflatten(0, mask.shape)
        return AutoencoderFeatures(state, mask, target)

    def compute_loss(
        self,
        features: AutoencoderFeatures,
        next_features: AutoencoderFeatures | None,  # noqa: ARG002
    ) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast(features.state.device.type, enabled=False):
            predicted = self.decoder(features.state).view_as(features.target)
        error = (predicted - features.target).square().mean((2, 3))  # [B, V]
        loss = self.config.loss_coef * (error * features.mask).sum() / features.mask.sum().clamp(min=1)
        return loss, {"reconstruction_loss": loss.detach()}
