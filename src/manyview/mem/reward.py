"""Eq. 9, the multi-view intrinsic reward, and Eq. 10, what the agent is trained on."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manyview.mem.encoder import Features
from manyview.mem.knn import Combine, Reference, knn_distance, nearby_distance

BetaUnit = Literal["agent_steps", "episodes", "frames", "updates"]


def reward_distances(
    features: Features,
    *,
    k: int = 3,
    entropy: Combine = "marginal",
    among: Reference | None = None,
    window: int | None = None,
) -> Tensor:
    """The distances of Eq. 9 as [B, V + 1], one column a view and the last for x̄; [B, 1] for `joint`."""
    points, mask = features.terms.transpose(0, 1), features.terms_mask.T
    if window is not None:
        return nearby_distance(points, k, window=window, mask=mask, combine=entropy).T
    return knn_distance(points, k, mask=mask, among=among, combine=entropy).T


def intrinsic_reward(distances: Tensor, mask: Tensor) -> Tensor:
    """Eq. 9: r̂ [B], the mean of log(distance + 1) over the terms that are there.

    PAPER: D9. `joint` has a single term, one entropy over the whole state instead of one per view.
    """
    return torch.where(mask, distances.log1p(), 0.0).sum(1) / mask.sum(1)


def total_reward(reward_ext: Tensor, reward_int: Tensor, beta: float) -> Tensor:
    """Eq. 10: ř + β r̂. For n-step returns r̂ is that of the first state and is added once."""
    return reward_ext + beta * reward_int


@dataclass(frozen=True)
class BetaSchedule:
    """β_t = β_0 (1 - κ)^t.

    PAPER: D10. Algorithm 1 counts steps, Algorithm 2 episodes. The unit is part of the schedule so that a log can
    say it: with the paper's values β is 0.018 after 100,000 units and 0.0003 after 500,000.
    """

    beta0: float = 0.05
    decay: float = 1e-5  # κ
    unit: BetaUnit = "agent_steps"

    def __call__(self, elapsed: int) -> float:
        return float(self.beta0 * (1 - self.decay) ** elapsed)
