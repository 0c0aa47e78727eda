"""RE3 (Seo et al., 2021): k-NN distance in a random, frozen embedding.

As published, features are computed once, when a step is stored, and neighbors are searched in the whole replay buffer.
`search=batch` searches the batch alone, which is cheaper; rollouts are searched as a whole.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from manyview.data.batch import Batch, get_rewarded_views
from manyview.data.neighbors import NeighborSearch
from manyview.data.rollout_buffer import RolloutBuffer, map_features
from manyview.mem.knn import knn_distance, windowed_knn_distance
from manyview.mem.reward import check_replay_or_rollouts
from manyview.methods.bonuses.stored_search import (
    SearchSet,
    StoredNeighborSearch,
    check_search,
    get_neighbor_distances,
)
from manyview.methods.interfaces import Bonus, BonusConfig, BuildContext, RunSettings
from manyview.methods.registry import register_bonus
from manyview.nn.normalization import CumulativeMoments, RewardScale, RunningMoments
from manyview.nn.trunks import Trunk, make_trunk, normalize_images
from manyview.utils.validation import MAX_UNITS, check_at_least, check_at_most


@dataclass(frozen=True, kw_only=True)
class RE3Config(BonusConfig):
    """Settings of RE3."""

    latent_dim: int = 50
    """Feature dimension per view."""
    trunk: Trunk = "paper"
    """Convolutions, see `representation=mem`."""
    views: tuple[str, ...] | None = None
    """Views to embed, by name; None embeds all."""
    search: SearchSet = "buffer"
    """Search set of the neighbors with a replay buffer: the whole `buffer`, as published, or the `batch` alone."""
    k: int = 3
    """k of the k-nearest neighbor."""
    average: bool = False
    """Mean distance to all k neighbors instead of the k-th alone, as in the paper's appendix for PPO."""
    log: bool = False
    """log(distance + 1) instead of the distance, as in the paper's appendix for PPO."""
    reward_scale: RewardScale = "std"
    """r̂ divided by the `std` of all so far, as published, `raw`, or `centered`: standardized within the batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "latent_dim", "k")
        check_at_most(self, MAX_UNITS, "latent_dim")

    def check(self, run: RunSettings) -> None:
        super().check(run)
        check_search(self, run)


class RE3Features(NamedTuple):
    """Random embedding of all views."""

    embedding: Tensor  # [B, V * P], zero where a view is absent


class RE3(Bonus):
    """Bonus r̂: k-NN distance, to the k-th neighbor or the mean over k, in a random embedding.

    The embedding of a view is tanh of LayerNorm of a random linear map of random convolutions of its newest frame;
    views are concatenated.
    """

    config: RE3Config

    def __init__(
        self,
        num_views: int,
        frame_shape: tuple[int, int, int],
        config: RE3Config | None = None,
        *,
        view_indices: list[int] | None = None,
    ) -> None:
        super().__init__()
        self.config = config = config or RE3Config()
        self.view_indices, self.channels = view_indices or list(range(num_views)), frame_shape[0]
        self.trunk, flat_dim = make_trunk(frame_shape, config.trunk)
        norm = nn.LayerNorm(config.latent_dim, elementwise_affine=False)
        self.head = nn.Sequential(nn.Linear(flat_dim, config.latent_dim), norm, nn.Tanh())
        # PAPER: D64. torch's own initialization, as in the authors' code; an orthogonal one pays 3 to 5 times as much.
        self.requires_grad_(False)
        is_batch_scale = config.reward_scale == "centered"
        self.reward_moments = RunningMoments(1, decay=0.0) if is_batch_scale else CumulativeMoments(1)

    @property
    def feature_shape(self) -> tuple[int, int] | None:
        stores = self.config.search == "buffer"
        return (1, len(self.view_indices) * self.config.latent_dim) if stores else None

    @property
    def neighbor_search(self) -> NeighborSearch | None:
        config = self.config
        if config.search == "batch":
            return None
        return StoredNeighborSearch(groups=1, k=config.k, rewarded_state=config.rewarded_state)

    @torch.no_grad()
    def encode(self, views: Tensor, mask: Tensor | None = None) -> RE3Features:
        """Embed the newest frames of `views` [B, V, C, H, W]."""
        images = views[:, self.view_indices, -self.channels :]
        embedding = self.head(self.trunk(normalize_images(images.flatten(0, 1)))).float().unflatten(0, images.shape[:2])
        if mask is not None:
            embedding = torch.where(mask[:, self.view_indices].unsqueeze(-1), embedding, 0.0)
        return RE3Features(embedding.flatten(1))

    def features_to_store(self, views: Tensor, mask: Tensor, features: Any) -> Tensor:  # noqa: ARG002
        return self.encode(views, mask).embedding.unsqueeze(1)

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        views, mask, indices = get_rewarded_views(batch, self.config.rewarded_state)
        if self.config.search == "batch":
            return self.compute_reward(self.encode(views, mask), indices=indices)
        return self.reward_distances(get_neighbor_distances(batch), mask)

    @torch.no_grad()
    def reward_distances(self, distances: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002
        nearest = distances[:, 0]  # [B, k], ascending
        return self._scale(nearest.mean(1) if self.config.average else nearest[:, -1])

    @torch.no_grad()
    def reward_states(self, views: Tensor, mask: Tensor, features: Any = None) -> Tensor:  # noqa: ARG002
        return self.compute_reward(self.encode(views, mask))

    @torch.no_grad()
    def compute_rollout(self, rollout: RolloutBuffer, features: Any | None, *, window: int | None) -> Tensor:  # noqa: ARG002
        steps, envs = rollout.reward_ext.shape
        rows = map_features(rollout.encode_all(self.encode), lambda part: part[:steps].flatten(0, 1))
        return self.compute_reward(rows, window=window, num_rollouts=1 if window else envs).view(steps, envs)

    @torch.no_grad()
    def compute_reward(
        self,
        features: RE3Features,
        *,
        indices: Tensor | None = None,
        window: int | None = None,
        num_rollouts: int = 1,
    ) -> Tensor:
        """Return r̂ [B], searched among the rows of `features`; see `mem.EntropyBonus.compute_reward`."""
        check_replay_or_rollouts(indices, num_rollouts)
        k, average = self.config.k, self.config.average
        points = features.embedding.unflatten(0, (-1, num_rollouts)).transpose(0, 1)
        with torch.autocast(points.device.type, enabled=False):
            if window is not None:
                distance = windowed_knn_distance(points, k, window=window, average=average)
            else:
                distance = knn_distance(points, k, indices=indices, average=average)
        return self._scale(distance.T.flatten())

    def _scale(self, distance: Tensor) -> Tensor:
        reward = distance.log1p() if self.config.log else distance
        if self.training:
            self.reward_moments.update(reward.unsqueeze(1))
        return self.reward_moments.scale_reward(reward, self.config.reward_scale)


@register_bonus("re3", RE3Config)
def build_re3(config: RE3Config, context: BuildContext) -> RE3:
    """Build RE3."""
    return RE3(context.num_views, context.frame_shape, config, view_indices=context.find_views(config.views))
