"""Eq. 3 to 6: the losses that separate shared from view-specific features.

Every loss is a mean over the batch and over the present views.
PAPER: D4. The paper sums over the batch in Eq. 5; a sum would make λ depend on the batch size.
"""

from typing import Literal

import torch
from torch import Tensor

L1 = Literal["mean", "sum"]
MarginUnit = Literal["norm", "raw"]
OtherViews = Literal["pooled", "each"]
Adversary = Literal["uniform", "reversal"]


def diff_loss(shared: Tensor, specific: Tensor, mask: Tensor, *, l1: L1 = "mean") -> Tensor:
    """Return L_diff (Eq. 3): max{cos(x, y), 0} + ‖x‖₁ + ‖y‖₁.

    x is `shared`, y is `specific`, both [B, V, P].
    """
    # Bounded away from 0, so that the zero vector has a finite gradient.
    norms = _norm(shared).clamp(min=1e-8) * _norm(specific).clamp(min=1e-8)
    cosine = ((shared * specific).sum(-1) / norms).clamp(min=0)
    # PAPER: D5. The sum over p features is about 52 after LayerNorm at p = 64 and swamps the cosine.
    sparsity = torch.linalg.vector_norm(shared, 1, dim=-1) + torch.linalg.vector_norm(specific, 1, dim=-1)
    return _masked_mean(cosine + (sparsity / shared.shape[-1] if l1 == "mean" else sparsity), mask)


def con_loss(
    specific: Tensor,
    mask: Tensor,
    *,
    margin: float = 1.0,
    margin_unit: MarginUnit = "norm",
    others: OtherViews = "pooled",
) -> Tensor:
    """Return L_con (Eq. 4), the contrastive loss of the specific features y [B, V, P].

    It pulls y to the mean of its view (μ_same) and pushes it `margin` away from the mean of the others (μ_diff).
    """
    # PAPER: D11. LayerNormed features have norm √p: a margin of 1 is never active between them, as a multiple of that
    # norm it is. Dividing all distances keeps pull and push in proportion.
    unit = specific.shape[-1] ** 0.5 if margin_unit == "norm" else 1.0
    weights = mask.to(specific).unsqueeze(-1)  # [B, V, 1]
    counts = weights.sum(0)  # [V, 1]
    sums = (specific * weights).sum(0)  # [V, P]
    view_mean = sums / counts.clamp(min=1)
    # The mean minimizes the sum of squares, whose gradient with respect to it is therefore 0.
    pull = (specific - view_mean.detach()).square().sum(-1) / unit**2  # [B, V]
    # PAPER: D6. "The different viewpoint" is singular; for more than two views, pool the others or use each.
    if others == "pooled":
        other_counts = counts.sum(0) - counts
        other_mean = (sums.sum(0) - sums) / other_counts.clamp(min=1)
        push = (margin - _norm(specific - other_mean) / unit).clamp(min=0).square()
        push = push * (other_counts.squeeze(-1) > 0)
    else:
        distances = _norm(specific.unsqueeze(2) - view_mean) / unit  # [B, V, V]
        is_other = (counts.squeeze(-1) > 0) & ~torch.eye(len(counts), dtype=torch.bool, device=counts.device)
        hinges = (margin - distances).clamp(min=0).square() * is_other
        push = hinges.sum(-1) / is_other.sum(-1).clamp(min=1)
    return 0.5 * _masked_mean(pull + push, mask)


def discriminator_loss(logits: Tensor, mask: Tensor) -> Tensor:
    """Return the discriminator's side of Eq. 5 (max over φ).

    Cross-entropy of predicting the view of x from `logits` [B, V, V], whose last axis is the predicted view.
    """
    return _masked_mean(-_log_view_probability(logits, mask).diagonal(dim1=1, dim2=2), mask)


def discriminator_gradient(logits: Tensor, mask: Tensor) -> Tensor:
    """Return the gradient of `discriminator_loss` with respect to `logits`: (probability - one-hot) / count."""
    weights = mask.to(logits)
    probability = _log_view_probability(logits, mask).exp() * weights.unsqueeze(1)
    one_hot = torch.eye(mask.shape[1], dtype=logits.dtype, device=logits.device)
    return (probability - one_hot) * (weights / weights.sum().clamp(min=1)).unsqueeze(2)


def adv_loss(logits: Tensor, mask: Tensor, *, adversary: Adversary = "uniform") -> Tensor:
    """Return L_adv, the encoder's side of Eq. 5 (min over θ).

    It makes the views of x indistinguishable to the discriminator.
    PAPER: D7. `uniform` is the bounded cross-entropy to the uniform distribution; `reversal` is the literal min-max.
    """
    if adversary == "reversal":
        return -discriminator_loss(logits, mask)
    log_probability = _log_view_probability(logits, mask)  # 0 for absent views
    present = mask.sum(-1, keepdim=True)  # [B, 1]
    return _masked_mean(-log_probability.sum(-1) / present.clamp(min=1), mask)


def total_loss(diff: Tensor, con: Tensor, adv: Tensor, *, diff_coef: float, con_coef: float, adv_coef: float) -> Tensor:
    """Return L_total (Eq. 6): λ1 L_diff + λ2 L_con + λ3 L_adv."""
    return diff_coef * diff + con_coef * con + adv_coef * adv


def _log_view_probability(logits: Tensor, mask: Tensor) -> Tensor:
    """Return log D(x) over the views present in the row, 0 for absent views."""
    candidates = mask.unsqueeze(1)  # [B, 1, V]
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(~candidates, lowest).log_softmax(-1).masked_fill(~candidates, 0.0)


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of [B, V] over present entries."""
    weights = mask.to(values)
    return (values * weights).sum() / weights.sum().clamp(min=1)


def _norm(vectors: Tensor) -> Tensor:
    """Return the norm over the last axis; its gradient at the zero vector is 0."""
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return norm
