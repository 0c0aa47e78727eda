"""RE3 (Seo et al., 2021): k-NN distance in a random, frozen embedding.

The options follow the paper's appendix.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyview.mem.knn import knn_distance, windowed_knn_distance
from manyview.mem.reward import check_replay_or_rollouts
from manyview.nn.normalization import RewardScale, make_reward_moments
from manyview.nn.trunks import Trunk, make_trunk, normalize_images
from manyview.utils.validation import MAX_UNITS, check_at_least, check_at_most, check_choices


@dataclass(frozen=True, kw_only=True)
class RE3Config:
    """Settings of RE3."""

    latent_dim: int = 50
    """Feature dimension per view."""
    trunk: Trunk = "paper"
    """Convolutions, see `mem.trunk`."""
    k: int = 3
    """k of the k-nearest neighbor."""
    average: bool = False
    """Mean distance to all k neighbors instead of the k-th alone, as in the paper's appendix for PPO."""
    log: bool = False
    """log(distance + 1) instead of the distance, as in the paper's appendix for PPO."""
    reward_scale: RewardScale = "raw"
    """r̂ as it is (`raw`, the paper's appendix), divided by its running `std` (RE3's published code), or `centered`:
    standardized within the batch."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "latent_dim", "k")
        check_at_most(self, MAX_UNITS, "latent_dim")


class RE3Features(NamedTuple):
    """Random embedding of all views."""

    embedding: Tensor  # [B, V * P], zero where a view is absent


class RE3(nn.Module):
    """Bonus r̂: k-NN distance, to the k-th neighbor or the mean over k, in a random embedding.

    The embedding of a view is LayerNorm of a random linear map of random convolutions; views are concatenated.
    """

    def __init__(self, image_shape: tuple[int, int, int], config: RE3Config | None = None) -> None:
        super().__init__()
        self.config = config or RE3Config()
        latent_dim = self.config.latent_dim
        self.trunk, flat_dim = make_trunk(image_shape, self.config.trunk)
        self.head = nn.Sequential(nn.Linear(flat_dim, latent_dim), nn.LayerNorm(latent_dim, elementwise_affine=False))
        self.reward_moments = make_reward_moments(self.config.reward_scale)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
        self.requires_grad_(False)

    @torch.no_grad()
    def encode(self, views: Tensor, mask: Tensor | None = None) -> RE3Features:
        embedding = self.head(self.trunk(normalize_images(views.flatten(0, 1)))).float().unflatten(0, views.shape[:2])
        if mask is not None:
            embedding = torch.where(mask.unsqueeze(-1), embedding, 0.0)
        return RE3Features(embedding.flatten(1))

    @torch.no_grad()
    def compute_reward(
        self,
        features: RE3Features,
        *,
        indices: Tensor | None = None,
        window: int | None = None,
        num_rollouts: int = 1,
        num_batches: int = 1,
    ) -> Tensor:
        check_replay_or_rollouts(indices, num_rollouts)
        k, average = self.config.k, self.config.average
        points = features.embedding.unflatten(0, (-1, num_rollouts)).transpose(0, 1)
        with torch.autocast(points.device.type, enabled=False):
            if window is not None:
                distance = windowed_knn_distance(points, k, window=window, average=average)
            else:
                distance = knn_distance(points, k, indices=indices, average=average)
        distance = distance.T.flatten()
        reward = distance.log1p() if self.config.log else distance
        if self.training:
            self.reward_moments.update(reward.unsqueeze(1), num_batches=num_batches)
        return self.reward_moments.scale_reward(reward, self.config.reward_scale)
