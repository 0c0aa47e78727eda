"""MAD (Almuzairee et al., 2025): one sum over views, and each single view as an augmentation of it."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyview.methods.interfaces import BuildContext, RunSettings
from manyview.methods.registry import register_representation
from manyview.methods.representations.pixel import PixelEncoderConfig, check_critic_trains_encoder, make_head
from manyview.nn.trunks import Trunk, init_orthogonal, make_trunk, normalize_images
from manyview.utils.validation import check_unit_interval


@dataclass(frozen=True, kw_only=True)
class MADConfig(PixelEncoderConfig):
    """Settings of MAD."""

    latent_dim: int = 50
    """Size of the state, with `projection`."""
    trunk: Trunk = "nature"
    """Convolutions, see `representation=mem`; those of the publication by default."""
    projection: bool = True
    """Project the sum of the convolutions' outputs to `latent_dim` features; `false` gives it to the agent as it is."""
    single_view_weight: float = 0.2
    """Weight of the single views in the losses of critics, actor and temperature; the state of all views has the
    rest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unit_interval(self, "single_view_weight")

    def check(self, run: RunSettings) -> None:
        """Check that the agent trains the encoder."""
        check_critic_trains_encoder(run)


class MADFeatures(NamedTuple):
    """Features of MAD."""

    state: Tensor  # [B, S], of the sum over present views
    mask: Tensor  # [B, V]
    latents: Tensor  # [B, V, P], flat output of the convolutions, zero for absent views


class MAD(nn.Module):
    """Encoder whose state has the same size and meaning for any number of present views."""

    uses_next_features = False

    def __init__(self, image_shape: tuple[int, int, int], config: MADConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or MADConfig()
        self.trunk, flat_dim = make_trunk(image_shape, config.trunk)
        self.head, self.state_dim = make_head(flat_dim, config)
        self.apply(init_orthogonal)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> MADFeatures:
        if mask is None:
            mask = torch.ones(views.shape[:2], dtype=torch.bool, device=views.device)
        latents = self.trunk(normalize_images(views.flatten(0, 1))).unflatten(0, mask.shape)
        latents = torch.where(mask.unsqueeze(-1), latents, 0.0)
        return MADFeatures(self.head(latents.sum(1)).float(), mask, latents)

    def compute_loss(
        self,
        features: MADFeatures,
        next_features: MADFeatures | None,  # noqa: ARG002
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return features.state.new_zeros(()), {}

    def encode_single_views(self, features: MADFeatures) -> tuple[Tensor, Tensor]:
        """Return the state of each view alone [V, B, S], and its weight [V, B]; 0 for an absent view."""
        # PAPER: D50. The mean over the present views of a row: every transition weighs the same.
        counts = features.mask.sum(1, keepdim=True).clamp(min=1)  # [B, 1]
        weights = self.config.single_view_weight * features.mask / counts
        return self.head(features.latents.transpose(0, 1)).float(), weights.t()


@register_representation("mad", MADConfig, data=("replay",))
def build_mad(config: MADConfig, context: BuildContext) -> MAD:
    """Build MAD."""
    return MAD(context.image_shape, config)
