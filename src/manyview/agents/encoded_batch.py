"""Encoded replay batches: the features that an off-policy agent learns on."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyview.data.sequences import Sequences
from manyview.nn.heads import weighted_mean


class EncodedBatch(NamedTuple):
    """Augmented views of a replay batch and the representation's features of them."""

    views: Tensor  # [B, V, C, H, W] uint8
    mask: Tensor  # [B, V], after view dropout
    features: Any
    """Features of s_t, with gradient."""
    next_features: Any
    """Features of s_{t+n}, without gradient."""
    target_next_features: Any
    """Features of s_{t+n} by the target encoder."""
    sequences: tuple[Sequences, Sequences] | None = None
    """Two augmentations of the batch's sequences, the first one encoded; None for independent transitions."""


class TrainingInputs(NamedTuple):
    """States that critics and actor learn on: of all views, then of each single one if the representation has them."""

    states: Tensor  # [N * B, S], the B states of all views first
    weights: Tensor | None = None  # [N * B] in the losses, of sum 1; None for a plain mean

    def repeat(self, values: Tensor) -> Tensor:
        """Return `values` [B, ...] for all states [N * B, ...]."""
        copies = len(self.states) // len(values)
        return values if copies == 1 else torch.cat([values] * copies)

    def average(self, losses: Tensor) -> Tensor:
        """Return the mean of `losses` [N * B] by the weights of their states."""
        return weighted_mean(losses, self.weights)


def select_rows(features: Any, rows: Tensor, *, detach: bool = False) -> Any:
    """Return rows of the features, a `NamedTuple` of tensors."""
    return features._make((part.detach() if detach else part)[rows] for part in features)
