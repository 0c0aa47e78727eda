"""Regularizers against feature collapse, not in the paper.

PAPER: D8. Nothing in Eq. 3 to 6 preserves information about the state: without extrinsic reward they shrink the
features a hundredfold and the bonus vanishes. `docs/explanation/collapse.md` shows this and what each regularizer does.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Temporal = Literal["closeness", "contrast"]


def variance_floor_loss(features: Tensor, mask: Tensor, *, floor: float = 0.5) -> Tensor:
    """Return the hinge loss max(floor - std, 0) of each view's feature dimensions.

    `features` [B, V, P]; the standard deviation is over the present rows of a view.
    """
    centered, count = _center_features(features, mask)
    variance = centered.pow(2).sum(0) / (count - 1).clamp(min=1)  # [V, P]
    shortfall = (floor - (variance + 1e-8).sqrt()).clamp(min=0).mean(-1)
    return _mean_over_views(shortfall, count)


def decorrelation_loss(features: Tensor, mask: Tensor) -> Tensor:
    """Return the squared off-diagonal covariances of `features` [B, V, P].

    Summed over pairs of dimensions, divided by P, mean over views.
    """
    centered, count = _center_features(features, mask)
    covariance = torch.einsum("bvp,bvq->vpq", centered, centered) / (count - 1).clamp(min=1).unsqueeze(-1)
    all_squared = covariance.pow(2).sum((1, 2))
    diagonal_squared = covariance.diagonal(dim1=1, dim2=2).pow(2).sum(1)
    return _mean_over_views((all_squared - diagonal_squared) / features.shape[-1], count)


def temporal_closeness_loss(features: Tensor, next_features: Tensor, mask: Tensor) -> Tensor:
    """Return the mean squared difference of `features` and `next_features` [B, G, P].

    With the variance floor, which excludes the constant solution, this is slow feature analysis. `next_features` is a
    target and gets no gradient; `mask` [B, G] is true where both are present.
    """
    squared = (features - next_features.detach()).pow(2).mean(-1)
    return torch.where(mask, squared, 0.0).sum() / mask.sum().clamp(min=1)


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


def _center_features(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return features minus their view's mean (0 where absent), and the counts [V, 1]."""
    present = mask.unsqueeze(-1)
    count = present.sum(0)
    mean = (features * present).sum(0) / count.clamp(min=1)
    return (features - mean) * present, count


def _mean_over_views(values: Tensor, count: Tensor) -> Tensor:
    """Return the mean of [V] over views with at least two rows: one row has no variance."""
    measurable = count.squeeze(-1) > 1
    return (values * measurable).sum() / measurable.sum().clamp(min=1)
