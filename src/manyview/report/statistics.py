"""Bootstrap intervals of means over seeds or episodes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

BOOTSTRAP_SAMPLES = 10_000
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Lower and upper end of an interval, as arrays of the same shape."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]


def bootstrap_interval(values: ArrayLike, *, seed: int = 0) -> Interval:
    """Compute the 95 % bootstrap interval (percentile) of the mean over the first axis.

    All other axes share the same bootstrap samples. With three values the interval is their range.

    Raises:
        ValueError: There are fewer than 2 values.

    """
    rows = np.asarray(values, np.float64)
    count = len(rows)
    if count < 2:
        raise ValueError(f"too few values for an interval: expected at least 2, got {count}")
    # Counts of each row in each bootstrap sample: all means are then one matrix product.
    counts = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), BOOTSTRAP_SAMPLES)
    means = np.tensordot(counts / count, rows, axes=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return Interval(low, high)


def format_mean(values: Sequence[float]) -> str:
    """Format a mean as `812.4, 95 % interval 790.1 to 833.0`, or a single value alone."""
    mean = f"{np.mean(values):.1f}"
    if len(values) < 2:
        return mean
    low, high = bootstrap_interval(values)
    return f"{mean}, 95 % interval {low:.1f} to {high:.1f}"
