"""Is the bonus alive, and what keeps it from being so? Meters on a batch of features, and a verdict in words."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from manyview.mem.encoder import Features

SHARED_MEAN = "shared mean"

# Where a meter turns into a warning. Healthy runs stay away from all of them by a factor of two or more; the
# literal losses cross the first within a few hundred updates (docs/explanation/collapse.md).
MIN_STD = 0.05
MIN_RANK = 3.0
MAX_EXCESS_ACCURACY = 0.25  # above chance
MAX_COSINE = 0.5
MIN_SHARE = 0.2  # of an even share
MIN_CONTRAST = 1e-5
MIN_PRESENT = 0.5
MIN_ROWS = 16


@dataclass(frozen=True)
class Diagnostics:
    """Meters by view name; `std`, `rank` and `share` also have an entry for the shared mean.

    Spread and rank of fewer than `FEW_ROWS` rows say nothing and are not-a-number.
    """

    finite: float
    """Share of rows whose features are all finite."""
    present: dict[str, float]
    """Share of rows in which the view was there."""
    std: dict[str, float]
    """Standard deviation of the specific features over the batch, mean over dimensions: 0 means collapse."""
    rank: dict[str, float]
    """Effective rank: how many directions the features use."""
    share: dict[str, float]
    """Part of the marginal reward that each term pays; an even share is 1 / (V + 1)."""
    cosine: dict[str, float]
    """Mean of max{cos(shared, specific), 0}, what Eq. 3 presses down."""
    discriminator_accuracy: float
    """How often the discriminator names the view of a shared feature."""
    chance: float
    """How often guessing would."""
    reward_mean: float
    """Of r̂ as Eq. 9 has it, before any `reward_scale`: falls to 0 with the features."""
    reward_std: float
    contrast: float
    """β times the standard deviation of what is paid: what steers the policy."""

    def to_metrics(self) -> dict[str, float]:
        """All meters by flat name, for a log."""
        flat = {
            f"{meter}/{name}": value
            for meter in ("present", "std", "rank", "share", "cosine")
            for name, value in getattr(self, meter).items()
        }
        for field in ("finite", "discriminator_accuracy", "chance", "reward_mean", "reward_std", "contrast"):
            flat[field] = getattr(self, field)
        return flat

    def list_warnings(self) -> list[str]:
        """What is wrong, in words, each with what to do about it; empty when all is well."""
        warnings = []
        if self.finite < 1:
            warnings.append(
                f"features are not finite in {1 - self.finite:.0%} of the rows: go back to an earlier checkpoint."
            )
        for name, value in self.present.items():
            if value < MIN_PRESENT:
                warnings.append(f"view `{name}` is absent in {1 - value:.0%} of the batch: check the camera.")
        for name in (name for name in self.std if self.present.get(name, 1.0) >= MIN_PRESENT):
            subject = f"the {name}" if name == SHARED_MEAN else f"view `{name}`"
            if self.std[name] < MIN_STD:
                frozen = "" if name == SHARED_MEAN else "Is the camera frozen? If not, "
                warnings.append(
                    f"{subject} has collapsed: its features hardly differ between states (std {self.std[name]:.2g}), "
                    f"so it pays no bonus. {frozen}raise floor_coef or lower con_coef."
                )
            elif self.rank[name] < MIN_RANK:
                warnings.append(
                    f"{subject} has narrowed to {self.rank[name]:.1f} directions: its bonus sees little of the "
                    "state. Raise decorrelation_coef or lower temporal_coef."
                )
            elif self.share[name] < MIN_SHARE / len(self.std) and math.isfinite(self.std[name]):
                warnings.append(f"{subject} pays only {self.share[name]:.1%} of the bonus.")
        if self.discriminator_accuracy > self.chance + MAX_EXCESS_ACCURACY:
            warnings.append(
                f"shared features still tell their view (accuracy {self.discriminator_accuracy:.2f}, "
                f"chance {self.chance:.2f}): raise adv_coef."
            )
        for name, value in self.cosine.items():
            if value > MAX_COSINE:
                warnings.append(
                    f"shared and specific features of view `{name}` overlap (cosine {value:.2f}): raise diff_coef."
                )
        if self.contrast < MIN_CONTRAST:
            warnings.append(
                f"the bonus no longer steers: β · std(r̂) is {self.contrast:.1g}. Expected late in training; "
                'otherwise raise beta0 or set reward_scale="std".'
            )
        return warnings

    def summarize(self) -> str:
        """The warnings as one text, or that there are none."""
        return "\n".join(self.list_warnings()) or "healthy: every view varies, and pays its part of the bonus."


def compute_diagnostics(
    features: Features,
    view_names: tuple[str, ...],
    *,
    distances: Tensor,
    logits: Tensor,
    reward: Tensor,
    scaled_reward: Tensor,
    beta: float,
) -> Diagnostics:
    """Meters of a batch; `distances` [B, V + 1] are those of Eq. 9, `logits` [B, V, V] the discriminator's, `reward`
    and `scaled_reward` [B] r̂ before and after its scale.
    """
    mask = features.mask
    terms = (*view_names, SHARED_MEAN)
    spread = [_compute_spread(features.terms[features.terms_mask[:, i], i]) for i in range(len(terms))]
    term_reward = torch.where(features.terms_mask, distances.log1p(), 0.0).mean(0)
    cosine = F.cosine_similarity(features.shared, features.specific, dim=-1).clamp(min=0)
    guesses = logits.masked_fill(~mask.unsqueeze(1), -torch.inf).argmax(-1)
    is_correct = guesses == torch.arange(len(view_names), device=mask.device)
    return Diagnostics(
        finite=features.terms.isfinite().all(-1).all(-1).float().mean().item(),
        present=_zip_names(view_names, mask.float().mean(0)),
        std={name: std for name, (std, _) in zip(terms, spread, strict=True)},
        rank={name: rank for name, (_, rank) in zip(terms, spread, strict=True)},
        share=_zip_names(terms, term_reward / term_reward.sum().clamp(min=1e-12)),
        cosine=_zip_names(view_names, torch.where(mask, cosine, 0.0).sum(0) / mask.sum(0).clamp(min=1)),
        discriminator_accuracy=is_correct[mask].float().mean().item(),
        chance=(1 / mask.sum(1).float())[:, None].expand_as(mask)[mask].mean().item(),
        reward_mean=reward.mean().item(),
        reward_std=reward.std(correction=0).item(),
        contrast=beta * scaled_reward.std(correction=0).item(),
    )


def effective_rank(points: Tensor) -> float:
    """Exp of the entropy of the normalised singular values of centred `points` [N, P]; 0 if they are all the same."""
    points = points.cpu().double()  # not every accelerator has float64
    if not points.isfinite().all():
        return math.nan
    singular = torch.linalg.svdvals(points - points.mean(0))
    total = singular.sum()
    if len(points) < 2 or total <= 1e-12 * points.abs().max():
        return 0.0
    share = singular / total
    return float(torch.special.entr(share).sum().exp())


def _compute_spread(points: Tensor) -> tuple[float, float]:
    if len(points) < MIN_ROWS:
        return math.nan, math.nan
    return points.std(0).mean().item(), effective_rank(points)


def _zip_names(names: tuple[str, ...], values: Tensor) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))
