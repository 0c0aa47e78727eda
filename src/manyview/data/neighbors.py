"""Search of neighbors among the features in a replay buffer.

A step can be a neighbor if it has an action, or for s_{t+n} if it follows one. So an observation that is stored twice
counts once: as the last step of a chunk, among the frames that the next chunk starts with, or as a repetition. As for
windows, the newest step is left out, and the oldest ones that may be overwritten while a batch is made.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyview.data.n_step import find_oldest_start
from manyview.data.replay_buffer import ReplayBuffer

BLOCK_STEPS = 4096
"""Steps of a block: its distances to a batch stay near the core's cache."""


NeighborFn = Callable[[Tensor, Tensor], Tensor | None]
"""Distances [B, G, k] from features [B, G, P] with their mask of views [B, V]; None without a replay buffer."""


class FeatureRows(NamedTuple):
    """Stored features of N steps."""

    features: NDArray[np.float32]  # [N, G, P], a view of the ring where the steps are contiguous
    mask: NDArray[np.bool_]  # [N, G], true where a group is present
    indices: NDArray[np.int64]  # [N]


class NeighborSearch(Protocol):
    """Search of a batch's nearest neighbors in a replay buffer."""

    @property
    def distances_shape(self) -> tuple[int, int]: ...  # G, k

    def __call__(
        self,
        replay: ReplayBuffer,
        indices: NDArray[np.int64],
        next_indices: NDArray[np.int64],
        *,
        horizon: int,
    ) -> Tensor:
        """Return ascending distances [B, G, k] from s_t (`indices`) or s_{t+n} (`next_indices`).

        Steps from `horizon` on are ignored.
        """

    def search(self, replay: ReplayBuffer, rows: FeatureRows, *, horizon: int) -> Tensor:
        """Return ascending distances [B, G, k] from `rows`, such as those of `make_feature_rows`."""


def make_group_mask(mask: Tensor, groups: int) -> Tensor:
    """Return which groups of features [B, G] are present by the mask [B, V] of views.

    A step has one group of all views, present if any view is; or one for each view, and perhaps one of all views.
    """
    terms_mask = torch.cat([mask, mask.any(1, keepdim=True)], dim=1)  # [B, V + 1]
    return terms_mask[:, -1:] if groups == 1 else terms_mask[:, :groups]


def get_feature_rows(replay: ReplayBuffer, indices: NDArray[np.int64]) -> FeatureRows:
    """Return copies of the features of steps."""
    slots = indices % replay.capacity
    return _make_rows(_get_ring(replay).take(slots, axis=0), replay.steps.take(slots)["mask"], indices)


def make_feature_rows(features: NDArray[np.float32], mask: NDArray[np.bool_]) -> FeatureRows:
    """Return features [N, G, P] of observations that are not stored, with their mask of views [N, V]."""
    return _make_rows(features, mask, np.full(len(mask), -1))


def iter_neighbor_rows(replay: ReplayBuffer, *, horizon: int, after_action: bool = False) -> Iterator[FeatureRows]:
    """Yield the features of all steps that can be neighbors, in blocks; other rows are masked.

    Steps that have an action can be s_t. With `after_action`, steps that follow one can: s_{t+n}, which may be the last
    of an episode.
    """
    for rows in _iter_contiguous_rows(replay, find_oldest_start(replay, horizon), horizon - 1):
        steps = replay.steps.take((rows.indices - after_action) % replay.capacity)
        is_state = steps["acted"]
        if after_action:
            is_state = is_state & ~replay.steps.take(rows.indices % replay.capacity)["repeated"]
        yield rows._replace(mask=rows.mask & is_state[:, None])


def _iter_contiguous_rows(replay: ReplayBuffer, start: int, end: int) -> Iterator[FeatureRows]:
    """Yield the features of steps `start` to `end` (exclusive) without copying them."""
    while start < end:
        slot = start % replay.capacity
        count = min(BLOCK_STEPS, end - start, replay.capacity - slot)
        part = slice(slot, slot + count)
        yield _make_rows(_get_ring(replay)[part], replay.steps[part]["mask"], np.arange(start, start + count))
        start += count


def _make_rows(features: NDArray[np.float32], view_mask: NDArray[np.bool_], indices: NDArray[np.int64]) -> FeatureRows:
    mask = make_group_mask(torch.from_numpy(view_mask), features.shape[1])
    return FeatureRows(features, mask.numpy(), indices)


def _get_ring(replay: ReplayBuffer) -> NDArray[np.float32]:
    if replay.features is None:
        raise ValueError("no features to search: expected a replay buffer with a feature_shape, got one without")
    return replay.features
