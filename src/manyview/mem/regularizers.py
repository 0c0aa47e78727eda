"""Terms of our own that keep the features alive and make them follow the state.

PAPER: D8. Nothing in Eq. 3 to 6 keeps information about the state: without extrinsic reward they shrink the features
a hundredfold and the bonus dies. `docs/explanation/collapse.md` shows it, and shows what these terms do against it.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Temporal = Literal["closeness", "contrast"]


def variance_floor_loss(features: Tensor, mask: Tensor, *, floor: float = 0.5) -> Tensor:
    """Hinge on the standard deviation of every dimension of `features` [B, V, P] within each view."""
    centred, count = _center_features(features, mask)
    variance = centred.pow(2).sum(0) / (count - 1).clamp(min=1)  # [V, P]
    shortfall = (floor - (variance + 1e-8).sqrt()).clamp(min=0).mean(-1)
    return _mean_over_views(shortfall, count)


def decorrelation_loss(features: Tensor, mask: Tensor) -> Tensor:
    """Squared covariances between the dimensions of `features` [B, V, P] within each view, summed, per dimension."""
    centred, count = _center_features(features, mask)
    covariance = torch.einsum("bvp,bvq->vpq", centred, centred) / (count - 1).clamp(min=1).unsqueeze(-1)
    all_squared = covariance.pow(2).sum((1, 2))
    own_squared = covariance.diagonal(dim1=1, dim2=2).pow(2).sum(1)
    return _mean_over_views((all_squared - own_squared) / features.shape[-1], count)


def temporal_closeness_loss(features: Tensor, next_features: Tensor, mask: Tensor) -> Tensor:
    """Squared distance per dimension between `features` and `next_features` [B, G, P]: what follows in time lies close.

    With the variance floor, which excludes a constant as the answer, this is slow feature analysis. `next_features`
    is a target and takes no gradient; `mask` [B, G] says where both are seen.
    """
    squared = (features - next_features.detach()).pow(2).mean(-1)
    return torch.where(mask, squared, 0.0).sum() / mask.sum().clamp(min=1)


def temporal_contrast_loss(
    features: Tensor, next_features: Tensor, mask: Tensor, *, temperature: float = 0.1
) -> Tensor:
    """InfoNCE between `features` and `next_features` [B, G, P]: tell each row's future from the other rows' futures.

    It also spreads the rows evenly, and evenly spread rows are all equally rare: see D12 before using it.
    """
    anchors = F.normalize(features, dim=-1).transpose(0, 1)  # [G, B, P]
    targets = F.normalize(next_features.detach(), dim=-1).transpose(0, 1)
    similarity = anchors @ targets.transpose(1, 2) / temperature  # [G, B, B]
    present = mask.transpose(0, 1)  # [G, B]
    similarity = similarity.masked_fill(~present.unsqueeze(1), torch.finfo(similarity.dtype).min)
    negative_log_prob = -similarity.log_softmax(-1).diagonal(dim1=1, dim2=2)  # [G, B]
    return torch.where(present, negative_log_prob, 0.0).sum() / present.sum().clamp(min=1)


def _center_features(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Features less their view's mean, zero where absent, and how many there are of each view [V, 1]."""
    present = mask.unsqueeze(-1)
    count = present.sum(0)
    mean = (features * present).sum(0) / count.clamp(min=1)
    return (features - mean) * present, count


def _mean_over_views(values: Tensor, count: Tensor) -> Tensor:
    """Mean of [V] over the views with at least two rows: one row has no spread."""
    measurable = count.squeeze(-1) > 1
    return (values * measurable).sum() / measurable.sum().clamp(min=1)
