"""Drift: motion of the bonus's features while they stay in the feature bank or the replay buffer."""

from typing import Any

import torch
from torch import Tensor, nn

from manyview.data.batch import Batch, RewardedState, get_rewarded_views
from manyview.data.neighbors import make_group_mask
from manyview.methods.interfaces import HasFeatureBank
from manyview.nn.soft_update import make_target, soft_update


class DriftMeter(nn.Module):
    """Comparison of a bonus's encoder with its copy of some updates ago, on the same images.

    drift = mean |f - f_past| / mean distance of f to its k-th neighbor. The bank mixes features of encoders that are up
    to `compute_age` updates old. Far below 1, they can be compared; near 1, r̂ rewards the encoder's motion. The copy
    belongs to the agent's state, so that a resumed run logs equal values.

    Args:
        encoder: Encoder whose features the bonus is computed on: the online one, its target network or the bonus's own.
        bonus: Bonus with a feature bank, which measures distances as r̂ does.

    """

    def __init__(self, encoder: Any, bonus: HasFeatureBank) -> None:
        super().__init__()
        self.encoder, self.bonus, self.past_encoder = encoder, bonus, make_target(encoder)

    def compute_age(self, num_rows: int) -> int:
        """Return the age in updates of the bank's oldest rows, for batches of `num_rows`."""
        return -(-self.bonus.bank_size // num_rows)

    def store_encoder(self) -> None:
        """Make the current encoder the past one of the next measurement."""
        soft_update(self.encoder, self.past_encoder, 1.0)

    @torch.no_grad()
    def measure(self, views: Tensor, mask: Tensor, indices: Tensor | None = None) -> Tensor:
        """Return the drift since `store_encoder`, for the images of a batch with replay `indices`."""
        features, past_features = (encoder.encode(views, mask) for encoder in (self.encoder, self.past_encoder))
        return self.bonus.compute_drift(features, past_features, indices=indices)


def has_trained_parameters(bonus: nn.Module) -> bool:
    """Return False for a frozen encoder, whose stored features never age."""
    return any(parameter.requires_grad for parameter in bonus.parameters())


def compute_stored_drift(features: Tensor, batch: Batch, state: RewardedState) -> Tensor:
    """Return the motion of s_t's features since they were stored, over the mean distance to the k-th neighbor.

    `features` [B, G, P] are those of the current encoder. The rows of a batch are as old as those of the replay buffer
    that they are compared with.
    """
    if batch.stored_features is None or batch.neighbor_distances is None:
        raise ValueError("batch without stored features: expected one of a sampler with a neighbor_search")
    distances = batch.neighbor_distances[..., -1]  # [B, G], or [B, 1] of a joint search
    squared = (features - batch.stored_features).square().sum(-1)  # [B, G]
    present = make_group_mask(batch.mask, squared.shape[1])
    motion = torch.where(present, squared, 0.0)
    if distances.shape[1] == 1:
        motion, present = motion.sum(1, keepdim=True), make_group_mask(batch.mask, 1)
    searched = make_group_mask(get_rewarded_views(batch, state)[1], distances.shape[1])
    return motion.sqrt()[present].mean() / distances[searched].mean().clamp(min=1e-12)
