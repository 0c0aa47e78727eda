"""APT (Liu and Abbeel, 2021): k-NN distance in features of a forward and an inverse model.

As in URLB, φ is trained by ICM's two models and neighbors are searched in the batch; rollouts are searched as a whole.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyview.data.batch import Batch, get_rewarded_views
from manyview.data.rollout_buffer import RolloutBuffer, map_features
from manyview.mem.config import DistanceScale
from manyview.mem.knn import knn_distance, windowed_knn_distance
from manyview.methods.bonuses.dynamics import DynamicsBonus, DynamicsConfig
from manyview.methods.bonuses.stored_search import check_num_rows
from manyview.methods.interfaces import BuildContext, RunSettings
from manyview.methods.registry import register_bonus
from manyview.methods.representations.pixel import PixelFeatures
from manyview.nn.normalization import CumulativeMoments
from manyview.utils.validation import check_at_least


@dataclass(frozen=True, kw_only=True)
class APTConfig(DynamicsConfig):
    """Settings of APT."""

    k: int = 12
    """Number of smallest distances that are averaged, that of a state to itself included."""
    distance_scale: DistanceScale = "raw"
    """Distances `raw`, or `relative` to the mean of all so far."""
    clip: float = 0.0
    """Amount that is subtracted from the distances; smaller ones count as 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 2, "k")
        check_at_least(self, 0, "clip")

    def check(self, run: RunSettings) -> None:
        super().check(run)
        check_num_rows(self, run)


class APT(DynamicsBonus):
    """Bonus `r̂ = log(1 + mean distance to the k nearest states)`, itself included, in φ."""

    config: APTConfig

    def __init__(
        self,
        num_views: int,
        image_shape: tuple[int, int, int],
        num_actions: int,
        config: APTConfig,
        *,
        discrete: bool = True,
    ) -> None:
        super().__init__(num_views, image_shape, num_actions, config, discrete=discrete)
        self.distance_moments = CumulativeMoments(1)

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        views, mask, indices = get_rewarded_views(batch, self.config.rewarded_state)
        return self._reward_distances(self._search(self.encode(views, mask), indices=indices))

    @torch.no_grad()
    def reward_states(self, views: Tensor, mask: Tensor, features: Any = None) -> Tensor:  # noqa: ARG002
        return self._reward_distances(self._search(self.encode(views, mask)))

    @torch.no_grad()
    def compute_rollout(self, rollout: RolloutBuffer, features: Any | None, *, window: int | None) -> Tensor:  # noqa: ARG002
        steps, envs = rollout.reward_ext.shape
        encoded = map_features(rollout.encode_all(self.encode), lambda part: part[:steps])
        if window is not None:
            rows = map_features(encoded, lambda part: part.flatten(0, 1))
            return self._reward_distances(self._search(rows, window=window).view(steps, envs))
        each = [self._search(PixelFeatures(*(part[:, env] for part in encoded))) for env in range(envs)]
        return self._reward_distances(torch.stack(each, 1))

    def _search(self, features: PixelFeatures, *, indices: Tensor | None = None, window: int | None = None) -> Tensor:
        """Return the mean distances [B] to the k - 1 nearest other rows, over the views that both have."""
        points, mask = features.state.unflatten(1, (self.num_views, -1)).transpose(0, 1), features.mask.T
        num_others = self.config.k - 1
        if window is not None:
            distance = windowed_knn_distance(
                points, num_others, window=window, mask=mask, combine="joint", average=True
            )
        else:
            distance = knn_distance(points, num_others, mask=mask, indices=indices, combine="joint", average=True)
        return distance.squeeze(0)

    def _reward_distances(self, distance: Tensor) -> Tensor:
        """Return r̂ for the mean distances to k - 1 others; a row's distance to itself, 0, is the k-th."""
        config, share = self.config, (self.config.k - 1) / self.config.k
        if config.distance_scale == "relative":
            if self.training:
                self.distance_moments.update(share * distance.reshape(-1, 1))
            distance = distance / self.distance_moments.mean.clamp(min=1e-8)
        return self.scale_reward((share * (distance - config.clip).clamp(min=0)).log1p())


@register_bonus("apt", APTConfig)
def build_apt(config: APTConfig, context: BuildContext) -> APT:
    """Build APT."""
    actions = context.actions
    return APT(context.num_views, context.image_shape, actions.size, config, discrete=actions.discrete)
