"""Regularizers against feature collapse, not in the paper.

PAPER: D8. Nothing in Eq. 3 to 6 preserves information about the state: without extrinsic reward they shrink the
features a hundredfold and the bonus vanishes. `docs/explanation/collapse.md` shows this and what each regularizer does.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Temporal = Literal["closeness", "contrast"]


class Covariance(NamedTuple):
    """Covariances of the feature dimensions of each view, over its present rows."""

    matrices: Tensor  # [V, P, P]
    is_measurable: Tensor  # [V], 1 for views with at least two rows: one row has no variance; else 0


def compute_covariance(features: Tensor, mask: Tensor) -> Covariance:
    """Return the covariances of `features` [B, V, P] over the rows present in `mask` [B, V]."""
    rows, weights = features.transpose(0, 1), mask.to(features).T.unsqueeze(-1)  # [V, B, P], [V, B, 1]
    counts = weights.sum(1, keepdim=True)  # [V, 1, 1]
    # The covariance has no gradient with respect to the mean: the centered rows sum to 0.
    mean = weights.mT @ rows.detach() / counts.clamp(min=1)  # [V, 1, P]
    centered = (rows - mean) * weights
    return Covariance(centered.mT @ centered / (counts - 1).clamp(min=1), (counts > 1).to(features).flatten())


def variance_floor_loss(covariance: Covariance, *, floor: float = 0.5) -> Tensor:
    """Return the hinge loss max(floor - std, 0) of each view's feature dimensions."""
    variance = covariance.matrices.diagonal(dim1=1, dim2=2)  # [V, P]
    return _mean_over_views((floor - (variance + 1e-8).sqrt()).clamp(min=0).mean(-1), covariance.is_measurable)


def decorrelation_loss(covariance: Covariance) -> Tensor:
    """Return the squared off-diagonal covariances.

    Summed over pairs of dimensions, divided by P, mean over views.
    """
    matrices = covariance.matrices
    off_diagonal = matrices.square().sum((1, 2)) - matrices.diagonal(dim1=1, dim2=2).square().sum(1)
    return _mean_over_views(off_diagonal / matrices.shape[-1], covariance.is_measurable)


def temporal_closeness_loss(features: Tensor, next_features: Tensor, mask: Tensor) -> Tensor:
    """Return the mean squared difference of `features` and `next_features` [B, G, P].

    With the variance floor, which excludes the constant solution, this is slow feature analysis. `next_features` is a
    target and gets no gradient; `mask` [B, G] is true where both are present.
    """
    squared, weights = (features - next_features.detach()).square().mean(-1), mask.to(features)
    return (squared * weights).sum() / weights.sum().clamp(min=1)


def temporal_contrast_loss(
    features: Tensor, next_features: Tensor, mask: Tensor, *, temperature: float = 0.1
) -> Tensor:
    """Return the InfoNCE loss between `features` and `next_features` [B, G, P].

    The positive of a row is its own next step, the negatives are the next steps of the other rows.

    InfoNCE also spreads the rows evenly, and evenly spread rows are all equally rare: see D12 before using it.
    """
    anchors = F.normalize(features, dim=-1).transpose(0, 1)  # [G, B, P]
    targets = F.normalize(next_features.detach(), dim=-1).transpose(0, 1)
    similarity = anchors @ targets.transpose(1, 2) / temperature  # [G, B, B]
    present = mask.transpose(0, 1)  # [G, B]
    similarity = similarity.masked_fill(~present.unsqueeze(1), torch.finfo(similarity.dtype).min)
    negative_log_prob = -similarity.log_softmax(-1).diagonal(dim1=1, dim2=2)  # [G, B]
    return torch.where(present, negative_log_prob, 0.0).sum() / present.sum().clamp(min=1)


def _mean_over_views(values: Tensor, is_measurable: Tensor) -> Tensor:
    """Return the mean of [V] over measurable views, 0 without any."""
    return (values * is_measurable).sum() / is_measurable.sum().clamp(min=1)
