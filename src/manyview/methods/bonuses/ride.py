"""RIDE (Raileanu and Rocktäschel, 2020): impact of a step over episodic visits.

r̂ is the change of the embedding, divided by the root of the episodic visit count. As in the paper's appendix, visits
are counted by k nearest neighbors (Badia et al., 2020). Written from the papers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyview.data.rollout_buffer import RolloutBuffer, map_features
from manyview.mem.neighbor_selection import measure_all_pairs
from manyview.methods.bonuses.dynamics import DynamicsBonus, DynamicsConfig
from manyview.methods.interfaces import BuildContext
from manyview.methods.registry import register_bonus
from manyview.methods.representations.pixel import PixelFeatures
from manyview.utils.validation import check_at_least, check_positive


@dataclass(frozen=True, kw_only=True)
class RIDEConfig(DynamicsConfig):
    """Settings of RIDE."""

    latent_dim: int = 128
    """Feature dimension per view."""
    hidden: int = 256
    """Hidden width of forward and inverse model."""
    inverse_coef: float = 0.1
    """Weight of the inverse model's loss (predict the action from both states); at 0 the features can collapse."""
    forward_coef: float = 10.0
    """Weight of the forward model's loss (predict the next state)."""
    k: int = 10
    """Number of nearest earlier states of the episode that count as visits."""
    kernel: float = 1e-3
    """ε of the visit kernel: a smaller value counts only closer states as visits."""
    cluster: float = 0.008
    """Distance ξ within which states are equal, in units of the mean squared distance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "k")
        check_positive(self, "kernel")
        check_at_least(self, 0, "cluster")


class RIDE(DynamicsBonus):
    """Bonus `r̂ = |φ(s') - φ(s)| / √N(s')`, with a forward and an inverse model that train φ.

    PAPER: D35. The appendix names the forward model alone, which a constant φ minimizes; RIDE's inverse model prevents
    that. `inverse_coef=0` is the appendix's text.
    """

    config: RIDEConfig
    metric_prefix = "ride"

    def encode_next(self, views: Tensor, mask: Tensor | None = None) -> PixelFeatures:
        return self.encode(views, mask)  # RIDE's losses train φ(s') as well

    @torch.no_grad()
    def compute_rollout(self, rollout: RolloutBuffer, features: Any | None, *, window: int | None) -> Tensor:  # noqa: ARG002
        return self.compute_reward(rollout.encode_all(self.encode), rollout.done)

    @torch.no_grad()
    def compute_reward(self, features: PixelFeatures, done: Tensor) -> Tensor:
        """Return r̂ [T, E] for features [T + 1, E, ...] and `done` [T, E].

        It is 0 for the last step of an episode, whose next state is not in the rollout.
        """
        features = PixelFeatures(features.state.float(), features.mask)
        now, later = map_features(features, lambda part: part[:-1]), map_features(features, lambda part: part[1:])
        visits = count_visits(features, done, k=self.config.k, kernel=self.config.kernel, cluster=self.config.cluster)
        return self.scale_reward(self.measure_distances(now, later) / visits[1:].sqrt(), ~done)


def count_visits(features: PixelFeatures, done: Tensor, *, k: int, kernel: float, cluster: float) -> Tensor:
    """Return the episodic pseudo-count N [T + 1, E] of features [T + 1, E, ...] (Badia et al., 2020).

    N is 1 plus the kernel values of the k nearest earlier states of the episode. A neighbor at squared distance d, in
    units of the mean over all neighbors, counts ε / (max(d - ξ, 0) + ε): 1 for an equal state, almost 0 at the mean
    distance. Distances are over the views that both states have. `done` [T, E] marks the steps that ended an episode.
    States of earlier rollouts are not counted.
    """
    episode = torch.cat([torch.zeros_like(done[:1]), done]).long().cumsum(0).T  # [E, T + 1]
    num_views = features.mask.shape[-1]
    points = features.state.unflatten(-1, (num_views, -1)).permute(1, 2, 0, 3)  # [E, V, T + 1, P]
    masks = features.mask.permute(1, 2, 0)  # [E, V, T + 1]
    # One environment at a time: together, their distances would take more memory than the frames.
    nearest = torch.stack([_find_nearest_earlier(*rows, k=k) for rows in zip(points, masks, episode, strict=True)])
    finite = nearest.isfinite()
    mean = torch.where(finite, nearest, 0.0).sum() / finite.sum().clamp(min=1)
    excess = (nearest / mean.clamp(min=1e-12) - cluster).clamp(min=0)
    return 1 + torch.where(finite, kernel / (excess + kernel), 0.0).sum(2).T


def _find_nearest_earlier(points: Tensor, mask: Tensor, episode: Tensor, *, k: int) -> Tensor:
    """Return the squared distances [N, k] of `points` [V, N, P] to the nearest earlier ones of their episode."""
    order = torch.arange(len(episode), device=points.device)
    is_earlier = (episode == episode.unsqueeze(1)) & (order < order.unsqueeze(1))  # [now, earlier]
    squared = measure_all_pairs(points, mask).square()
    return squared.masked_fill(~is_earlier, torch.inf).topk(min(k, len(episode)), largest=False).values


@register_bonus("ride", RIDEConfig, data=("rollout",))
def build_ride(config: RIDEConfig, context: BuildContext) -> RIDE:
    """Build RIDE."""
    actions = context.actions
    return RIDE(context.num_views, context.image_shape, actions.size, config, discrete=actions.discrete)
