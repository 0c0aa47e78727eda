"""Aggregates over the runs of a method on several tasks, with intervals of a stratified bootstrap.

Scores are a list of arrays [seeds], one per task; the tasks may have different numbers of seeds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.report.statistics import (
    BOOTSTRAP_SAMPLES,
    FloatArray,
    Interval,
    compute_improvement,
    compute_iqm,
    compute_profile,
    select_quantiles,
)

Scores = Sequence[FloatArray]
MIN_SEEDS = 3
"""Smallest number of seeds per task with an interval."""


class Estimate(NamedTuple):
    """Value with its 95 % interval, which is None with too few seeds."""

    value: float
    interval: Interval | None


def estimate_mean(scores: FloatArray) -> Estimate:
    """Estimate the mean over the seeds of one task."""
    samples = resample_seeds([scores])
    return Estimate(float(scores.mean()), None if samples is None else select_quantiles(samples[0].mean(1)))


def estimate_iqm(scores: Scores) -> Estimate:
    """Estimate the interquartile mean over the seeds of all tasks."""
    samples = resample_seeds(scores)
    value = float(compute_iqm(np.concatenate(scores)[:, None]))
    if samples is None:
        return Estimate(value, None)
    return Estimate(value, select_quantiles(compute_iqm(np.concatenate(samples, axis=1)[..., None])))


def estimate_improvement(scores: Scores, others: Scores) -> Estimate:
    """Estimate the probability that a run of `scores` beats one of `others` on the same task, mean over the tasks."""
    wins = [  # [seeds, other seeds] of each task: 1, or 0.5 for a tie
        compute_improvement(first[:, None, None, None], second[None, :, None, None])
        for first, second in zip(scores, others, strict=True)
    ]
    value = float(np.mean([table.mean() for table in wins]))
    if min(map(min, (table.shape for table in wins))) < MIN_SEEDS:
        return Estimate(value, None)
    rng = np.random.default_rng(0)
    # Counts of each seed in each bootstrap sample: all probabilities are then matrix products.
    samples = [
        ((_count_draws(rng, len(table)) @ table) * _count_draws(rng, table.shape[1])).sum(1) / table.size
        for table in wins
    ]
    return Estimate(value, select_quantiles(np.mean(samples, axis=0)))


def compute_profile_band(scores: Scores, thresholds: FloatArray) -> tuple[FloatArray, Interval | None]:
    """Return the performance profile at the thresholds, and its band."""
    profile = compute_profile(np.concatenate(scores), thresholds)
    samples = resample_seeds(scores)
    if samples is None:
        return profile, None
    pooled = np.concatenate(samples, axis=1)
    shares = np.stack([(pooled > threshold).mean(1) for threshold in thresholds], axis=1)
    return profile, select_quantiles(shares)


def resample_seeds(scores: Scores, *, seed: int = 0) -> list[FloatArray] | None:
    """Draw bootstrap samples [samples, seeds] of each task on its own; None if a task has fewer than `MIN_SEEDS`."""
    if min(map(len, scores)) < MIN_SEEDS:
        return None
    rng = np.random.default_rng(seed)
    return [values[rng.integers(len(values), size=(BOOTSTRAP_SAMPLES, len(values)))] for values in scores]


def _count_draws(rng: np.random.Generator, seeds: int) -> NDArray[np.int64]:
    return rng.multinomial(seeds, np.full(seeds, 1 / seeds), BOOTSTRAP_SAMPLES)
