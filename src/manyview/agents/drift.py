"""Drift: motion of the bonus's features while they stay in the feature bank."""

from typing import Any

import torch
from torch import Tensor, nn

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
