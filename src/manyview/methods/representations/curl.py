"""CURL (Laskin et al., 2020): InfoNCE between two augmentations of an observation."""

from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.data.batch import Batch, Minibatch
from manyview.data.batch_augmentation import random_shift
from manyview.methods.interfaces import BuildContext
from manyview.methods.registry import register_representation
from manyview.methods.representations.pixel import PixelEncoder, PixelEncoderConfig
from manyview.nn.soft_update import soft_update
from manyview.nn.trunks import Trunk
from manyview.utils.validation import MAX_UNITS, check_at_least, check_at_most, check_choices, check_unit_interval


@dataclass(frozen=True, kw_only=True)
class CURLConfig:
    """Settings of CURL."""

    latent_dim: int = 50
    """Feature dimension per view."""
    trunk: Trunk = "paper"
    """Convolutions, see `representation=mem`."""
    tau: float = 0.05
    """Soft-update rate τ of the key encoder, per update."""
    shift_pixels: int = 4
    """Maximum random shift of the key's images, in pixels."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "latent_dim")
        check_at_most(self, MAX_UNITS, "latent_dim")
        check_at_least(self, 0, "shift_pixels")
        check_unit_interval(self, "tau")


class CURLFeatures(NamedTuple):
    """Features of CURL, with the images that its loss shifts again."""

    state: Tensor  # [B, V * P]
    mask: Tensor  # [B, V]
    views: Tensor  # [B, V, C, H, W] uint8, shifted again by `compute_loss`


class CURL(nn.Module):
    """Pixel encoder with InfoNCE on its bilinear similarity to the keys of a target network."""

    uses_next_features = False

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
        encoder_config = PixelEncoderConfig(latent_dim=config.latent_dim, trunk=config.trunk)
        self.encoder = PixelEncoder(num_views, image_shape, encoder_config)
        self.key_encoder = deepcopy(self.encoder).requires_grad_(False)
        self.similarity = nn.Parameter(torch.rand(self.state_dim, self.state_dim) / self.state_dim)
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def state_dim(self) -> int:
        return self.encoder.state_dim

    def encode(self, views: Tensor, mask: Tensor | None = None) -> CURLFeatures:
        state, mask = self.encoder.encode(views, mask)
        return CURLFeatures(state, mask, views)

    def compute_loss(
        self,
        features: CURLFeatures,
        next_features: CURLFeatures | None,  # noqa: ARG002
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the InfoNCE loss over the batch and its metric."""
        with torch.no_grad():
            shifted = random_shift(features.views, self.config.shift_pixels, self.generator)
            key = self.key_encoder.encode(shifted, features.mask).state
        with torch.autocast(key.device.type, enabled=False):
            logits = features.state @ self.similarity @ key.t()  # [B, B]
        loss = F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))
        return loss, {"curl_loss": loss.detach()}

    def update(self, batch: Batch | Minibatch, features: CURLFeatures) -> dict[str, Tensor]:  # noqa: ARG002
        """Move the key encoder toward the encoder."""
        soft_update(self.encoder, self.key_encoder, self.config.tau)
        return {}


@register_representation("curl", CURLConfig)
def build_curl(config: CURLConfig, context: BuildContext) -> CURL:
    """Build CURL."""
    return CURL(context.num_views, context.image_shape, config, seed=context.seed)
