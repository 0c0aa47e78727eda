"""RIDE (Raileanu and Rocktäschel, 2020): impact of a step over episodic visits.

r̂ is the change of the embedding, divided by the root of the episodic visit count. As in the paper's appendix, visits
are counted by k nearest neighbors (Badia et al., 2020). Written from the papers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyview.data.rollout_buffer import RolloutBuffer
from manyview.methods.bonuses.dynamics import DynamicsBonus, DynamicsConfig
from manyview.methods.interfaces import BuildContext
from manyview.methods.registry import register_bonus
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "k")
        check_positive(self, "kernel")


class RIDE(DynamicsBonus):
    """Bonus `r̂ = |φ(s') - φ(s)| / √N(s')`, with a forward and an inverse model that train φ.

    PAPER: D35. The appendix names the forward model alone, which a constant φ minimizes; RIDE's inverse model prevents
    that. `inverse_coef=0` is the appendix's text.
    """

    config: RIDEConfig
    metric_prefix = "ride"

    @torch.no_grad()
    def compute_rollout(self, rollout: RolloutBuffer, features: Any | None, *, window: int | None) -> Tensor:  # noqa: ARG002
        return self.compute_reward(rollout.encode_all(self.encode).state, rollout.done)

    @torch.no_grad()
    def compute_reward(self, embedding: Tensor, done: Tensor) -> Tensor:
        """Return r̂ [T, E] for embeddings [T + 1, E, S] and `done` [T, E].

        It is 0 for the last step of an episode, whose next state is not in the rollout.
        """
        embedding = embedding.float()
        change = (embedding[1:] - embedding[:-1]).norm(dim=-1)
        visits = count_visits(embedding, done, k=self.config.k, kernel=self.config.kernel)
        return self.scale_reward(change / visits[1:].sqrt(), ~done)


def count_visits(states: Tensor, done: Tensor, *, k: int, kernel: float) -> Tensor:
    """Return the episodic pseudo-count N [T + 1, E] of `states` [T + 1, E, S].

    N is 1 plus the kernel values of the k nearest earlier states of the episode. A neighbor at squared distance d
    counts ε / (d / mean + ε), with the mean over all neighbors: 1 for an equal state, almost 0 at the mean distance.
    `done` [T, E] marks the steps that ended an episode. States of earlier rollouts are not counted.
    """
    episode = torch.cat([torch.zeros_like(done[:1]), done]).long().cumsum(0).T  # [E, T + 1]
    points = states.transpose(0, 1)  # [E, T + 1, S]
    # One environment at a time: together, their distances would take more memory than the frames.
    nearest = torch.stack([_find_nearest_earlier(*rows, k=k) for rows in zip(points, episode, strict=True)])
    finite = nearest.isfinite()
    mean = torch.where(finite, nearest, 0.0).sum() / finite.sum().clamp(min=1)
    similarity = torch.where(finite, kernel / (nearest / mean.clamp(min=1e-12) + kernel), 0.0)
    return 1 + similarity.sum(2).T


def _find_nearest_earlier(points: Tensor, episode: Tensor, *, k: int) -> Tensor:
    """Return the squared distances [T + 1, k] of `points` [T + 1, S] to the nearest earlier ones of their episode."""
    order = torch.arange(len(points), device=points.device)
    is_earlier = (episode == episode.unsqueeze(1)) & (order < order.unsqueeze(1))  # [now, earlier]
    squared = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    return squared.masked_fill(~is_earlier, torch.inf).topk(min(k, len(points)), largest=False).values


@register_bonus("ride", RIDEConfig, data=("rollout",))
def build_ride(config: RIDEConfig, context: BuildContext) -> RIDE:
    """Build RIDE."""
    actions = context.actions
    return RIDE(context.num_views, context.image_shape, actions.size, config, discrete=actions.discrete)
