"""Health meters of MEM's features and bonus, and warnings with a remedy for each."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from manyview.mem.encoder import Features

SHARED_MEAN = "shared mean"

# Warning thresholds. Healthy runs keep a factor of two or more from all of them; the literal losses cross MIN_STD
# within a few hundred updates (docs/explanation/collapse.md).
MIN_STD = 0.05
MIN_RANK = 3.0
MAX_EXCESS_ACCURACY = 0.25  # of the discriminator, above chance
MAX_COSINE = 0.5
MIN_SHARE = 0.2  # relative to an even share
MIN_CONTRAST = 1e-5
MIN_PRESENT = 0.5
MIN_ROWS = 16

# A task may have few images: N different ones span N - 1 directions, are at distance 0 from their repetitions, and
# make a sample of N for the discriminator. The thresholds below keep that apart from a collapse, whose features are
# close to each other and yet different.
MIN_USED_DIRECTIONS = 0.5  # relative to those that the different features can span
MIN_DIFFERENT = 0.5  # of the rows, for a k-NN distance to mean something
DISCRIMINATOR_SIGMAS = 3.0
SAME_FEATURES = 1e-5  # distance relative to the spread, well above the rounding of equal images in a batch


@dataclass(frozen=True)
class Diagnostics:
    """Health meters of a batch, by view name.

    `std`, `rank` and `share` also have an entry for the shared mean. `std` and `rank` are NaN for fewer than `MIN_ROWS`
    rows.
    """

    finite: float
    """Fraction of rows with finite features."""
    present: dict[str, float]
    """Fraction of rows in which the view is present."""
    std: dict[str, float]
    """Standard deviation of the features over the batch, mean over dimensions: 0 means collapse."""
    rank: dict[str, float]
    """Effective rank: number of directions that the features use."""
    different: dict[str, int]
    """Number of different features in the batch: that of different images, unless the encoder is constant."""
    share: dict[str, float]
    """Fraction of the marginal reward from each term; an even share is 1 / (V + 1)."""
    cosine: dict[str, float]
    """Mean of max{cos(shared, specific), 0}, which Eq. 3 minimizes."""
    discriminator_accuracy: float
    """Fraction of shared features whose view the discriminator predicts correctly."""
    chance: float
    """Accuracy of a random guess."""
    reward_mean: float
    """Mean of r̂ of Eq. 9, before `reward_scale`: goes to 0 when the features collapse."""
    reward_std: float
    """Standard deviation of r̂ of Eq. 9, before `reward_scale`."""
    contrast: float | None
    """β times the standard deviation of r̂ after `reward_scale`: the part of the bonus that steers the policy;
    None without a bonus."""
    rows: int
    """Number of rows of the batch."""

    def to_metrics(self) -> dict[str, float]:
        """Return all meters by flat name (`std/front`), for a logger."""
        flat = {
            f"{meter}/{name}": value
            for meter in ("present", "std", "rank", "different", "share", "cosine")
            for name, value in getattr(self, meter).items()
        }
        for field in ("finite", "discriminator_accuracy", "chance", "reward_mean", "reward_std"):
            flat[field] = getattr(self, field)
        return flat if self.contrast is None else flat | {"contrast": self.contrast}

    def list_warnings(self) -> list[str]:
        """Return one sentence per problem, each with a remedy; empty if there is none."""
        warnings = []
        if self.finite < 1:
            warnings.append(
                f"features are not finite in {1 - self.finite:.0%} of the rows: resume from an earlier checkpoint."
            )
        for name, value in self.present.items():
            if value < MIN_PRESENT:
                warnings.append(f"view `{name}` is absent in {1 - value:.0%} of the batch: check the camera.")
        for name in (name for name in self.std if self.present.get(name, 1.0) >= MIN_PRESENT):
            subject = f"the {name}" if name == SHARED_MEAN else f"view `{name}`"
            if self.std[name] < MIN_STD:
                remedy = "Raise" if name == SHARED_MEAN else "Is the camera frozen? If not, raise"
                warnings.append(
                    f"{subject} has collapsed: its features hardly differ between states (std {self.std[name]:.2g}), "
                    f"so it pays no bonus. {remedy} floor_coef or lower con_coef."
                )
            elif self.rank[name] < min(MIN_RANK, MIN_USED_DIRECTIONS * (self.different[name] - 1)):
                warnings.append(
                    f"{subject} has a low effective rank ({self.rank[name]:.1f}): its bonus covers little of the "
                    "state. Raise decorrelation_coef or lower temporal_coef."
                )
            elif self.share[name] < MIN_SHARE / len(self.std) and not self.is_repeated(name):
                warnings.append(f"{subject} pays only {self.share[name]:.1%} of the bonus.")
        if self.discriminator_accuracy > self.chance + self._max_excess_accuracy:
            warnings.append(
                f"shared features reveal their view (discriminator accuracy {self.discriminator_accuracy:.2f}, "
                f"chance {self.chance:.2f}): raise adv_coef."
            )
        for name, value in self.cosine.items():
            if value > MAX_COSINE:
                warnings.append(
                    f"shared and specific features of view `{name}` overlap (cosine {value:.2f}): raise diff_coef."
                )
        is_constant = self.reward_std < MIN_CONTRAST and all(map(self.is_repeated, self.std))
        if self.contrast is not None and self.contrast < MIN_CONTRAST and not is_constant:
            warnings.append(
                f"the bonus no longer steers the policy: β · std(r̂) is {self.contrast:.1g}. Expected late in training; "
                'otherwise raise beta0 or set reward_scale="std".'
            )
        return warnings

    def is_repeated(self, name: str) -> bool:
        """Return whether the batch repeats most images of a view, so that their k-NN distance is 0; or has few rows."""
        rows = self.rows * self.present.get(name, 1.0)
        return rows < MIN_ROWS or self.different[name] < MIN_DIFFERENT * rows

    @property
    def _max_excess_accuracy(self) -> float:
        """Limit of the discriminator's accuracy above chance; few different images reach more by chance."""
        images = max(1, sum(count for name, count in self.different.items() if name != SHARED_MEAN))
        sigma = math.sqrt(self.chance * (1 - self.chance) / images)
        return max(MAX_EXCESS_ACCURACY, DISCRIMINATOR_SIGMAS * sigma)

    def summarize(self) -> str:
        """Return the warnings as one text, or a sentence that says `healthy`."""
        if warnings := self.list_warnings():
            return "\n".join(warnings)
        repeated = [f"{name} {count}" for name, count in self.different.items() if self.is_repeated(name)]
        if not repeated or self.rows < MIN_ROWS:
            return "healthy: every view varies and contributes to the bonus."
        return f"healthy: every view varies. Few images differ in a batch, so they pay little: {', '.join(repeated)}."


def compute_diagnostics(
    features: Features,
    view_names: tuple[str, ...],
    *,
    distances: Tensor,
    logits: Tensor,
    reward: Tensor,
    scaled_reward: Tensor | None,
    beta: float,
) -> Diagnostics:
    """Compute the health meters of a batch.

    Args:
        features: of B rows.
        view_names: names of the V views.
        distances: [B, V + 1], the k-NN distances of Eq. 9.
        logits: [B, V, V], of the discriminator.
        reward: [B], r̂ before `reward_scale`.
        scaled_reward: [B], r̂ after it; None without a bonus.
        beta: current weight β of the bonus.

    """
    mask = features.mask
    terms = (*view_names, SHARED_MEAN)
    points = [features.terms[features.terms_mask[:, i], i] for i in range(len(terms))]
    spread = [_compute_spread(rows) for rows in points]
    term_reward = torch.where(features.terms_mask, distances.log1p(), 0.0).mean(0)
    cosine = F.cosine_similarity(features.shared, features.specific, dim=-1).clamp(min=0)
    predicted_views = logits.masked_fill(~mask.unsqueeze(1), -torch.inf).argmax(-1)
    is_correct = predicted_views == torch.arange(len(view_names), device=mask.device)
    return Diagnostics(
        finite=features.terms.isfinite().all(-1).all(-1).float().mean().item(),
        present=_zip_names(view_names, mask.float().mean(0)),
        std={name: std for name, (std, _) in zip(terms, spread, strict=True)},
        rank={name: rank for name, (_, rank) in zip(terms, spread, strict=True)},
        different={name: count_different(rows) for name, rows in zip(terms, points, strict=True)},
        share=_zip_names(terms, term_reward / term_reward.sum().clamp(min=1e-12)),
        cosine=_zip_names(view_names, torch.where(mask, cosine, 0.0).sum(0) / mask.sum(0).clamp(min=1)),
        discriminator_accuracy=is_correct[mask].float().mean().item(),
        chance=(1 / mask.sum(1).float())[:, None].expand_as(mask)[mask].mean().item(),
        reward_mean=reward.mean().item(),
        reward_std=reward.std(correction=0).item(),
        contrast=None if scaled_reward is None else beta * scaled_reward.std(correction=0).item(),
        rows=len(mask),
    )


def effective_rank(points: Tensor) -> float:
    """Return exp of the entropy of the normalized singular values of centered `points` [N, P].

    0 if all points are equal, NaN if any is not finite.
    """
    points = points.cpu().double()  # some accelerators have no float64
    if not points.isfinite().all():
        return math.nan
    singular = torch.linalg.svdvals(points - points.mean(0))
    total = singular.sum()
    if len(points) < 2 or total <= 1e-12 * points.abs().max():
        return 0.0
    share = singular / total
    return float(torch.special.entr(share).sum().exp())


def count_different(points: Tensor) -> int:
    """Return the number of `points` [N, P] that differ by more than rounding; all N if any is not finite.

    They are compared along one direction, in which different points are as good as never equal.
    """
    points = points.cpu().double()
    if len(points) < 2 or not points.isfinite().all():
        return len(points)
    direction = torch.arange(1, points.shape[1] + 1, dtype=points.dtype).mul(math.sqrt(2)).cos()
    line = (points @ direction).sort().values
    spread = line.std(correction=0)
    gaps = line.diff()
    return 1 + int((gaps > SAME_FEATURES * spread).sum()) if spread > 0 else 1


def _compute_spread(points: Tensor) -> tuple[float, float]:
    if len(points) < MIN_ROWS:
        return math.nan, math.nan
    return points.std(0).mean().item(), effective_rank(points)


def _zip_names(names: tuple[str, ...], values: Tensor) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))
