"""k-NN search among the features stored in a replay buffer, as RE3's published code rewards novelty."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyview.data import Batch, ReplayBuffer
from manyview.data.batch import RewardedState
from manyview.data.neighbors import FeatureRows, get_feature_rows, iter_neighbor_rows
from manyview.mem.knn import Combine, ReferenceSet, search_neighbors
from manyview.methods.interfaces import RunSettings
from manyview.utils.validation import SettingError, check_at_least, check_choices

SearchSet = Literal["buffer", "batch"]
"""Search set of a bonus: the whole replay buffer, or a batch."""


def check_search(config: Any, run: RunSettings) -> None:
    """Check that a bonus with `k` and `search` has its search set, with more than k rows."""
    if not run.is_on_policy:
        return
    default = type(config).search
    if config.search != default:
        raise SettingError(
            "search",
            f"expected {default} for {run.agent_name}, whose search set is the rollout, got "
            f"{config.search}. Remove it; agent.neighbors chooses the search set",
        )
    check_num_rows(config, run)


def check_num_rows(config: Any, run: RunSettings) -> None:
    """Check that the rollouts that a bonus with `k` searches have more than k rows.

    With fewer rows, r̂ would use the farthest one or be 0.
    """
    if not run.is_on_policy:
        return
    agent, rollout = run.agent, run.rollout
    if agent.neighbors == "pooled":
        if config.k >= agent.window:
            raise ValueError(f"agent.window must be more than bonus.k, got {agent.window} and {config.k}")
        if config.k >= rollout.envs * rollout.steps:
            raise ValueError(
                f"rollout.envs times rollout.steps must be more than bonus.k, got {rollout.envs}, {rollout.steps} and "
                f"{config.k}"
            )
    elif config.k >= rollout.steps:
        raise ValueError(
            f"rollout.steps must be more than bonus.k, got {rollout.steps} and {config.k}: neighbors are searched in "
            "the rollout of one environment. agent.neighbors=pooled searches all environments"
        )


def get_neighbor_distances(batch: Batch) -> Tensor:
    """Return the distances [B, G, k] to stored features that a sampler found. Raises ValueError without them."""
    if batch.neighbor_distances is None:
        raise ValueError("batch without neighbor_distances: expected a sampler with the bonus's neighbor_search")
    return batch.neighbor_distances


@dataclass(frozen=True, kw_only=True)
class StoredNeighborSearch:
    """`data.neighbors.NeighborSearch` in the whole replay buffer."""

    groups: int
    """Groups of features that a step has."""
    k: int
    """Number of neighbors."""
    combine: Combine = "marginal"
    """Search each group of features separately (`marginal`), or all groups as one vector (`joint`)."""
    rewarded_state: RewardedState = "current"
    """State whose neighbors are searched: s_t (`current`) or s_{t+n} (`next`)."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "k")

    @property
    def distances_shape(self) -> tuple[int, int]:
        return (1 if self.combine == "joint" else self.groups), self.k

    @torch.no_grad()
    def __call__(
        self,
        replay: ReplayBuffer,
        indices: NDArray[np.int64],
        next_indices: NDArray[np.int64],
        *,
        horizon: int,
    ) -> Tensor:
        """Return ascending distances [B, G, k], or [B, 1, k] with `joint`."""
        queries = get_feature_rows(replay, next_indices if self.rewarded_state == "next" else indices)
        return self.search(replay, queries, horizon=horizon)

    @torch.no_grad()
    def search(self, replay: ReplayBuffer, rows: FeatureRows, *, horizon: int) -> Tensor:
        """Return the distances of any `rows`; those that are not in the replay buffer have the index -1."""
        queries, is_next = _to_reference_set(rows), self.rewarded_state == "next"
        blocks = iter_neighbor_rows(replay, horizon=horizon, after_action=is_next)
        distances = search_neighbors(
            queries.points,
            self.k,
            mask=queries.mask,
            indices=queries.indices,
            blocks=_iter_reference_sets(blocks),
            combine=self.combine,
        )
        return distances.transpose(0, 1).contiguous()


def _iter_reference_sets(blocks: Iterator[FeatureRows]) -> Iterator[ReferenceSet]:
    return map(_to_reference_set, blocks)


def _to_reference_set(rows: FeatureRows) -> ReferenceSet:
    points, mask = torch.from_numpy(rows.features).transpose(0, 1), torch.from_numpy(rows.mask).T  # [G, N, P], [G, N]
    return ReferenceSet(points, mask, torch.from_numpy(rows.indices))
