"""What a learner gets of the replay."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Transitions over up to n steps. `discount` is γ^n, and 0 where the world ended."""

    views: Tensor  # [B, V, C, H, W] uint8, s_t
    mask: Tensor  # [B, V] bool
    action: Tensor  # [B, A]
    reward_ext: Tensor  # [B] Σ γ^j r_{t+j}
    discount: Tensor  # [B]
    next_views: Tensor  # [B, V, C, H, W] uint8, s_{t+n}
    next_mask: Tensor  # [B, V] bool
    indices: Tensor  # [B] int64, the number of each transition since the replay began

    def to(self, device: torch.device) -> "Batch":
        # Only CUDA copies from memory that a sampler pins and waits for; elsewhere it must not be used again too early.
        return Batch(*(tensor.to(device, non_blocking=device.type == "cuda") for tensor in self))


class Minibatch(NamedTuple):
    """Rows of a rollout, in no order."""

    views: Tensor  # [B, V, C, H, W] uint8, derived ones included
    mask: Tensor  # [B, V] bool
    action: Tensor  # [B] or [B, A]
    log_prob: Tensor  # [B], of the policy that acted
    value: Tensor  # [B], as that policy saw it
    advantage: Tensor  # [B]
    returns: Tensor  # [B], what the value should have been
    next_features: Any | None
    """Features of the step after, as they were while acting; None if they are not kept."""
    next_views: Tensor | None
    """Of the step after, if asked for; the row's own where its episode ended."""
    next_mask: Tensor | None
    has_next: Tensor  # [B] bool, whether the step after is of the same episode
