"""Eq. 9, the multi-view intrinsic reward, and Eq. 10, what the agent is trained on."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manyview.mem.choices import refuse_unknown_choices
from manyview.mem.encoder import Features
from manyview.mem.knn import Combine, Reference, knn_distance, nearby_distance

BetaUnit = Literal["agent_steps", "episodes", "frames", "updates", "rollouts"]


def reward_distances(
    features: Features,
    *,
    k: int = 3,
    entropy: Combine = "marginal",
    rows: Tensor | None = None,
    among: Reference | None = None,
    window: int | None = None,
    apart: int = 1,
) -> tuple[Tensor, Tensor]:
    """The distances of Eq. 9 and which of them are there, as [B, V + 1]: one column a view, the last for x̄.

    `joint` has a single column. `apart`: rows of so many rollouts in turn, each searched by itself.
    """
    if apart > 1:
        each = (Features(*(part[first::apart] for part in features)) for first in range(apart))
        found = [reward_distances(own, k=k, entropy=entropy, window=window) for own in each]
        distances, there = (torch.stack(parts, 1).flatten(0, 1) for parts in zip(*found, strict=True))
        return distances, there
    points, mask = features.terms.transpose(0, 1), features.terms_mask.T
    if window is not None:
        distances = nearby_distance(points, k, window=window, mask=mask, combine=entropy)
    else:
        distances = knn_distance(points, k, mask=mask, rows=rows, among=among, combine=entropy)
    return distances.T, features.terms_mask if entropy == "marginal" else features.terms_mask[:, -1:]


def refuse_both(rows: Tensor | None, apart: int) -> None:
    """Row numbers are a replay's, and rollouts apart have none."""
    if rows is not None and apart > 1:
        raise ValueError(f"rows are places in a replay, and apart is for rollouts: got both, apart={apart}")


def intrinsic_reward(distances: Tensor, mask: Tensor) -> Tensor:
    """Eq. 9: r̂ [B], the mean of log(distance + 1) over the terms that are there.

    PAPER: D9. `joint` has a single term, one entropy over the whole state instead of one per view.
    """
    return torch.where(mask, distances.log1p(), 0.0).sum(1) / mask.sum(1).clamp(min=1)


def total_reward(reward_ext: Tensor, reward_int: Tensor, beta: float) -> Tensor:
    """Eq. 10: ř + β r̂. For n-step returns r̂ is that of the first state and is added once."""
    if reward_ext.shape != reward_int.shape:  # [B, 1] + [B] would be [B, B]
        raise ValueError(f"expected rewards of one shape, got {list(reward_ext.shape)} and {list(reward_int.shape)}")
    return reward_ext + beta * reward_int


@dataclass(frozen=True)
class BetaSchedule:
    """β_t = β_0 (1 - κ)^t.

    PAPER: D10. Algorithm 1 counts steps, Algorithm 2 episodes. The unit is part of the schedule so that a log can
    say it: with the paper's values β is 0.018 after 100,000 units and 0.0003 after 500,000.
    """

    beta0: float = 0.05
    beta_decay: float = 1e-5  # κ
    unit: BetaUnit = "agent_steps"

    def __post_init__(self) -> None:
        refuse_unknown_choices(self)
        if self.beta0 < 0 or not 0 <= self.beta_decay < 1:
            raise ValueError(f"expected beta0 >= 0 and 0 <= beta_decay < 1, got {self.beta0} and {self.beta_decay}")

    def __call__(self, elapsed: int) -> float:
        return float(self.beta0 * (1 - self.beta_decay) ** elapsed)
