"""Terms of our own that keep the features alive and make them follow the state.

PAPER: D8. Nothing in Eq. 3 to 6 keeps information about the state: without extrinsic reward they shrink the features
a hundredfold and the bonus dies. `docs/collapse.md` shows it, and shows what these terms do against it.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Temporal = Literal["closeness", "contrast"]


def variance_floor(features: Tensor, mask: Tensor, *, floor: float = 0.5) -> Tensor:
    """Hinge on the standard deviation of every dimension of `features` [B, V, P] within each view."""
    centred, count = _centred(features, mask)
    variance = centred.pow(2).sum(0) / (count - 1).clamp(min=1)  # [V, P]
    shortfall = (floor - (variance + 1e-8).sqrt()).clamp(min=0).mean(-1)
    return _mean_over_measurable(shortfall, count)


def decorrelation(features: Tensor, mask: Tensor) -> Tensor:
    """Squared covariances between the dimensions of `features` [B, V, P] within each view, summed, per dimension."""
    centred, count = _centred(features, mask)
    covariance = torch.einsum("bvp,bvq->vpq", centred, centred) / (count - 1).clamp(min=1).unsqueeze(-1)
    all_squared = covariance.pow(2).sum((1, 2))
    own_squared = covariance.diagonal(dim1=1, dim2=2).pow(2).sum(1)
    return _mean_over_measurable((all_squared - own_squared) / features.shape[-1], count)


def temporal_closeness(now: Tensor, later: Tensor, mask: Tensor) -> Tensor:
    """Squared distance per dimension between `now` and `later` [B, G, P]: what follows in time lies close.

    With the variance floor, which keeps it from being answered by a constant, this is slow feature analysis. `later`
    is a target and takes no gradient; `mask` [B, G] says where both are seen.
    """
    squared = (now - later.detach()).pow(2).mean(-1)
    return torch.where(mask, squared, 0.0).sum() / mask.sum().clamp(min=1)


def temporal_contrast(now: Tensor, later: Tensor, mask: Tensor, *, temperature: float = 0.1) -> Tensor:
    """InfoNCE between `now` and `later` [B, G, P]: tell each row's own future from the other rows' futures.

    It also spreads the rows evenly, and evenly spread rows are all equally rare: see D12 before using it.
    """
    anchors = F.normalize(now, dim=-1).transpose(0, 1)  # [G, B, P]
    targets = F.normalize(later.detach(), dim=-1).transpose(0, 1)
    similarity = anchors @ targets.transpose(1, 2) / temperature  # [G, B, B]
    seen = mask.transpose(0, 1)  # [G, B]
    similarity = similarity.masked_fill(~seen.unsqueeze(1), torch.finfo(similarity.dtype).min)
    own = -similarity.log_softmax(-1).diagonal(dim1=1, dim2=2)  # [G, B]
    return torch.where(seen, own, 0.0).sum() / seen.sum().clamp(min=1)


def _centred(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Features less their view's mean, zero where absent, and how many there are of each view [V, 1]."""
    present = mask.unsqueeze(-1)
    count = present.sum(0)
    mean = (features * present).sum(0) / count.clamp(min=1)
    return (features - mean) * present, count


def _mean_over_measurable(values: Tensor, count: Tensor) -> Tensor:
    """Mean of [V] over the views with at least two rows: one row has no spread."""
    measurable = count.squeeze(-1) > 1
    return (values * measurable).sum() / measurable.sum().clamp(min=1)
