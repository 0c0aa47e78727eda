"""Batches for the learner: `Batch` of a replay buffer, `Minibatch` of a rollout buffer."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

RewardedState = Literal["current", "next"]
"""State of an n-step transition that a bonus rewards: s_t or s_{t+n}."""


class Batch(NamedTuple):
    """Batch of n-step transitions.

    A transition is shorter than n steps at the end of an episode. `discount` is γ^n, and 0 after a termination.
    """

    views: Tensor  # [B, V, C, H, W] uint8, s_t
    mask: Tensor  # [B, V] bool
    action: Tensor  # [B, A]
    reward_ext: Tensor  # [B] n-step return Σ γ^j r_{t+j}
    discount: Tensor  # [B]
    next_views: Tensor  # [B, V, C, H, W] uint8, s_{t+n}
    next_mask: Tensor  # [B, V] bool
    indices: Tensor  # [B] int64, index of each transition in the replay buffer, counted from the first ever added
    next_indices: Tensor  # [B] int64, index of s_{t+n}
    neighbor_distances: Tensor | None = None
    """Distances [B, G, k] to the nearest stored features, ascending; None without a neighbor search."""
    stored_features: Tensor | None = None
    """Features [B, G, P] of s_t as they were stored; None without a neighbor search."""
    positions: Tensor | None = None
    """Places [B, 2] of s_t and s_{t+n} in their sequence, int64; None for independent transitions.
    The rows of a sequence follow each other, the first at place 0; `data.sequences` arranges their observations."""
    vectors: Tensor | None = None
    """State vectors [B, D] of s_t, stacked, in raw units; None without any."""
    next_vectors: Tensor | None = None
    """The same of s_{t+n}."""

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with `function` applied to every tensor."""
        return Batch._make(tensor if tensor is None else function(tensor) for tensor in self)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on `device`."""
        # Asynchronous copies only for CUDA: there the sampler pins the memory and waits before it reuses it.
        return self.map(lambda tensor: tensor.to(device, non_blocking=device.type == "cuda"))


class Minibatch(NamedTuple):
    """Minibatch of rows of a rollout, in random order."""

    views: Tensor  # [B, V, C, H, W] uint8, derived views included
    mask: Tensor  # [B, V] bool
    action: Tensor  # [B] or [B, A]
    log_prob: Tensor  # [B], of the policy that collected the rollout
    value: Tensor  # [B], predicted at collection
    advantage: Tensor  # [B]
    returns: Tensor  # [B], target of the value function: value + advantage
    next_features: Any | None
    """Features of the next step, computed at collection; None if not stored."""
    next_views: Tensor | None
    """Views of the next step, or None; the row's own views where its episode ended."""
    next_mask: Tensor | None
    has_next: Tensor  # [B] bool, true if the next step is in the same episode
    vectors: Tensor | None = None
    """State vectors [B, D], stacked, in raw units; None without any."""


def get_next(batch: Batch | Minibatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return views and mask of the next state, and a mask [B] of the rows that have one.

    Raises ValueError for a minibatch without next views: a bonus asks for them by `uses_next_views`.
    """
    if isinstance(batch, Batch):
        return batch.next_views, batch.next_mask, torch.ones_like(batch.mask[:, 0])
    if batch.next_views is None or batch.next_mask is None:
        raise ValueError(
            "minibatch without next views: expected a bonus with uses_next_views=True, or get_minibatch(with_next=True)"
        )
    return batch.next_views, batch.next_mask, batch.has_next


def get_rewarded_views(batch: Batch | Minibatch, state: RewardedState) -> tuple[Tensor, Tensor, Tensor]:
    """Return views, mask and replay indices of the rewarded state.

    Rollouts reward the current state; the rows of a minibatch are numbered.
    """
    if isinstance(batch, Minibatch):
        return batch.views, batch.mask, torch.arange(len(batch.views), device=batch.views.device)
    if state == "next":
        return batch.next_views, batch.next_mask, batch.next_indices
    return batch.views, batch.mask, batch.indices


def get_rewarded_vectors(batch: Batch | Minibatch, state: RewardedState) -> Tensor | None:
    """Return the state vectors of the rewarded state, in raw units; None without any."""
    return batch.next_vectors if isinstance(batch, Batch) and state == "next" else batch.vectors
