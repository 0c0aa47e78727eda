"""Statistics of returns over seeds and tasks.

Scores are arrays [seeds, tasks], or [seeds] of one task. Intervals are those of a stratified bootstrap: seeds are drawn
for each task separately (Agarwal et al., 2021).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

BOOTSTRAP_SAMPLES = 10_000
CONFIDENCE = 0.95
MAX_SPLITS = 1_000_000

FloatArray = NDArray[np.float64]


class Interval(NamedTuple):
    """Lower and upper end of an interval, as arrays of the same shape."""

    low: FloatArray
    high: FloatArray


def bootstrap_interval(values: ArrayLike, *, seed: int = 0) -> Interval:
    """Compute the 95 % bootstrap interval (percentile) of the mean over the first axis.

    All other axes share the same bootstrap samples. With three values the interval is their range.

    Raises:
        ValueError: There are fewer than 2 values.

    """
    rows = np.asarray(values, np.float64)
    count = len(rows)
    _check_enough(count)
    # Counts of each row in each bootstrap sample: all means are then one matrix product.
    counts = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), BOOTSTRAP_SAMPLES)
    return select_quantiles(np.tensordot(counts / count, rows, axes=1))


class EpisodeMean(NamedTuple):
    """Mean over episodes with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def estimate_episode_mean(values: FloatArray) -> EpisodeMean:
    """Return the mean with its interval; a single value is its own interval."""
    mean = float(values.mean())
    if len(values) < 2:
        return EpisodeMean(mean, mean, mean)
    return EpisodeMean(mean, *(float(end) for end in bootstrap_interval(values)))


def compute_iqm(scores: ArrayLike) -> FloatArray:
    """Return the interquartile mean: of the middle half of all scores, over seeds and tasks.

    The last two axes are seeds and tasks; axes before them are kept. As in rliable, a quarter of the scores, rounded
    down, is cut off at each end.
    """
    rows = np.asarray(scores, np.float64)
    flat = np.sort(rows.reshape(*rows.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    middle: FloatArray = flat[..., cut : flat.shape[-1] - cut].mean(-1)
    return middle


def compute_iqm_interval(scores: ArrayLike, *, seed: int = 0) -> Interval:
    """Compute the 95 % interval of the interquartile mean of scores [seeds, tasks], or [seeds] of one task."""
    return _bootstrap(compute_iqm, [_to_table(scores)], seed)


def compute_profile(scores: ArrayLike, thresholds: ArrayLike) -> FloatArray:
    """Return the performance profile: for each threshold, the share of scores above it."""
    flat = np.asarray(scores, np.float64).reshape(-1, 1)
    share: FloatArray = (flat > np.asarray(thresholds, np.float64)).mean(0)
    return share


def compute_improvement(scores: ArrayLike, others: ArrayLike) -> FloatArray:
    """Return the probability that a random run of `scores` beats one of `others`, ties counted half.

    Both are [..., seeds, tasks] with the same tasks, over which the probability is averaged; the numbers of seeds may
    differ.
    """
    first, second = np.asarray(scores, np.float64), np.asarray(others, np.float64)
    difference = np.sign(first[..., :, None, :] - second[..., None, :, :])  # [..., seeds, other seeds, tasks]
    probability: FloatArray = 0.5 + 0.5 * difference.mean((-3, -2, -1))
    return probability


def compute_improvement_interval(scores: ArrayLike, others: ArrayLike, *, seed: int = 0) -> Interval:
    """Compute the 95 % interval of the probability of improvement."""
    return _bootstrap(compute_improvement, [_to_table(scores), _to_table(others)], seed)


def compute_permutation_p(values: ArrayLike, others: ArrayLike) -> float:
    """Return the one-sided exact p-value that the mean of `values` is above that of `others`.

    It is the share of all splits of the pooled values that differ as much. With five values against
    five there are 252 splits: p is at least 0.004.

    Raises:
        ValueError: Either is empty, or there are more than a million splits.

    """
    first, second = (np.asarray(side, np.float64).ravel() for side in (values, others))
    pooled = np.concatenate([first, second])
    if not len(first) or not len(second) or comb(len(pooled), len(first)) > MAX_SPLITS:
        raise ValueError(
            f"cannot list all splits: expected at least 1 value on each side and at most {MAX_SPLITS:,} splits, "
            f"got {len(first)} and {len(second)} values"
        )
    sums = np.array([pooled[list(chosen)].sum() for chosen in combinations(range(len(pooled)), len(first))])
    # Sums of the same values in another order may differ by rounding.
    tolerance = 1e-9 * np.abs(pooled).sum()
    return float((sums >= first.sum() - tolerance).mean())


def compute_fisher_p(successes: int, runs: int, other_successes: int, other_runs: int) -> float:
    """Return the one-sided exact p-value that `successes` of `runs` is more than those of the other runs."""
    total, all_successes = runs + other_runs, successes + other_successes
    counts = range(successes, min(runs, all_successes) + 1)
    ways = sum(comb(runs, count) * comb(other_runs, all_successes - count) for count in counts)
    return ways / comb(total, all_successes)


def correct_holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values corrected for their number by the method of Holm (1979)."""
    corrected, largest = {}, 0.0
    for rank, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_value))
        corrected[name] = largest
    return corrected


def format_mean(values: Sequence[float]) -> str:
    """Format a mean as `812.4, 95 % interval 790.1 to 833.0`, or a single value alone."""
    mean = f"{np.mean(values):z.1f}"
    if len(values) < 2:
        return mean
    low, high = bootstrap_interval(values)
    return f"{mean}, 95 % interval {low:z.1f} to {high:z.1f}"


def _bootstrap(statistic: Callable[..., FloatArray], tables: Sequence[FloatArray], seed: int) -> Interval:
    """Compute the 95 % interval of a statistic of tables [seeds, tasks], each resampled within its tasks."""
    rng = np.random.default_rng(seed)
    samples = []
    for table in tables:
        _check_enough(len(table))
        rows = rng.integers(len(table), size=(BOOTSTRAP_SAMPLES, *table.shape))
        samples.append(table[rows, np.arange(table.shape[1])])
    return select_quantiles(statistic(*samples))


def _to_table(scores: ArrayLike) -> FloatArray:
    table = np.asarray(scores, np.float64)
    return table[:, None] if table.ndim == 1 else table


def _check_enough(count: int) -> None:
    if count < 2:
        raise ValueError(f"too few values for an interval: expected at least 2, got {count}")


def select_quantiles(samples: FloatArray) -> Interval:
    """Return the 95 % interval of bootstrap samples over the first axis."""
    low, high = np.quantile(samples, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return Interval(low, high)
