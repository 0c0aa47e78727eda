"""Eq. 9, the multi-view intrinsic reward r̂, and Eq. 10, the total reward ř + β r̂."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manyview.mem.encoder import Features
from manyview.mem.knn import Combine, ReferenceSet, knn_distance, windowed_knn_distance
from manyview.utils.validation import SettingError, check_at_least, check_choices

BetaUnit = Literal["agent_steps", "episodes", "frames", "updates", "rollouts"]


def compute_distances(
    features: Features,
    *,
    k: int = 3,
    entropy: Combine = "marginal",
    indices: Tensor | None = None,
    reference: ReferenceSet | None = None,
    window: int | None = None,
    num_rollouts: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return the k-NN distances of Eq. 9 and their mask, [B, V + 1] each.

    There is a column per view, then one for x̄; with `joint` there is a single column. With `num_rollouts` > 1 the rows
    of this many rollouts alternate, and each rollout is searched separately. See `knn_distance` and
    `windowed_knn_distance` for the other arguments.
    """
    if num_rollouts > 1:
        rollouts = (Features(*(part[first::num_rollouts] for part in features)) for first in range(num_rollouts))
        results = [compute_distances(rollout, k=k, entropy=entropy, window=window) for rollout in rollouts]
        distances, present = (torch.stack(parts, 1).flatten(0, 1) for parts in zip(*results, strict=True))
        return distances, present
    points, mask = features.terms.transpose(0, 1), features.terms_mask.T
    if window is not None:
        distances = windowed_knn_distance(points, k, window=window, mask=mask, combine=entropy)
    else:
        distances = knn_distance(points, k, mask=mask, indices=indices, reference=reference, combine=entropy)
    return distances.T, features.terms_mask if entropy == "marginal" else features.terms_mask[:, -1:]


def compute_vector_distances(
    vectors: Tensor,
    *,
    k: int = 3,
    indices: Tensor | None = None,
    window: int | None = None,
    num_rollouts: int = 1,
) -> Tensor:
    """Return the k-NN distances [B, 1] of normalized state `vectors` [B, D], searched as `compute_distances` does."""
    if num_rollouts > 1:
        rollouts = (vectors[first::num_rollouts] for first in range(num_rollouts))
        results = [compute_vector_distances(rollout, k=k, window=window) for rollout in rollouts]
        return torch.stack(results, 1).flatten(0, 1)
    points = vectors.unsqueeze(0)
    if window is not None:
        return windowed_knn_distance(points, k, window=window).T
    return knn_distance(points, k, indices=indices).T


def check_replay_or_rollouts(indices: Tensor | None, num_rollouts: int) -> None:
    """Raise ValueError if both replay indices and several rollouts are given."""
    if indices is not None and num_rollouts > 1:
        raise ValueError(
            "invalid arguments: expected indices (of a replay buffer) or num_rollouts > 1, got both, "
            f"num_rollouts={num_rollouts}. Leave indices out for rollouts."
        )


def intrinsic_reward(distances: Tensor, mask: Tensor) -> Tensor:
    """Return r̂ [B] of Eq. 9: the mean of log(distance + 1) over the terms present in `mask`.

    PAPER: D9. `joint` has a single term, one entropy over the full state instead of one per view.
    """
    return torch.where(mask, distances.log1p(), 0.0).sum(1) / mask.sum(1).clamp(min=1)


def total_reward(reward_ext: Tensor, reward_int: Tensor, beta: float) -> Tensor:
    """Return r_total = ř + β r̂ (Eq. 10).

    An n-step return gets r̂ once, that of its first state. Raises ValueError if the shapes differ.
    """
    if reward_ext.shape != reward_int.shape:  # [B, 1] + [B] would be [B, B]
        raise ValueError(
            f"rewards do not match: expected one shape, got {list(reward_ext.shape)} and {list(reward_int.shape)}"
        )
    return reward_ext + beta * reward_int


@dataclass(frozen=True)
class BetaSchedule:
    """Weight of the bonus, β_t = β_0 (1 - κ)^t.

    PAPER: D10. Algorithm 1 counts steps, Algorithm 2 episodes. The unit is part of the schedule, so that records can
    name it: with the paper's values β is 0.018 after 100,000 units and 0.0003 after 500,000.
    """

    beta0: float = 0.05
    """Initial weight β_0."""
    beta_decay: float = 1e-5
    """Decay κ per unit."""
    unit: BetaUnit = "agent_steps"
    """Unit of t."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 0, "beta0")
        if not 0 <= self.beta_decay < 1:
            raise SettingError("beta_decay", f"expected at least 0 and less than 1, got {self.beta_decay}")

    def __call__(self, elapsed: int) -> float:
        """Return β after `elapsed` units."""
        return float(self.beta0 * (1 - self.beta_decay) ** elapsed)
