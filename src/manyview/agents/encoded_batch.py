"""Encoded replay batches: the features that an off-policy agent learns on."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyview.data.sequences import Sequences
from manyview.nn.heads import weighted_mean
from manyview.nn.vector_encoder import join_features


class VectorFeatures(NamedTuple):
    """Features of the state vectors of a replay batch."""

    current: Tensor  # [B, width] of s_t, with gradient
    next: Tensor  # [B, width] of s_{t+n}, without gradient
    target_next: Tensor  # [B, width] of s_{t+n}, by the target encoder


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
    vectors: VectorFeatures | None = None
    """Features of the state vectors; None without any."""

    @property
    def state(self) -> Tensor:
        """The policy's state [B, S] of s_t, with gradient."""
        return join_features(self.features.state, self.vectors and self.vectors.current)

    @property
    def next_state(self) -> Tensor:
        """The policy's state [B, S] of s_{t+n}, without gradient."""
        return join_features(self.next_features.state, self.vectors and self.vectors.next)

    @property
    def target_next_state(self) -> Tensor:
        """The policy's state [B, S] of s_{t+n} by the target encoders."""
        return join_features(self.target_next_features.state, self.vectors and self.vectors.target_next)


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
