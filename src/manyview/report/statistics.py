"""How sure a mean of a few seeds or episodes is."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

BOOTSTRAP_SAMPLES = 10_000
CONFIDENCE = 0.95


class Interval(NamedTuple):
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def bootstrap_interval(values: ArrayLike, *, seed: int = 0) -> Interval:
    """95 % bootstrap interval (percentile) of the mean over the first axis, with the same draws for all other axes.

    Of three values it is their range: fewer say nothing about an interval.
    """
    rows = np.asarray(values, np.float64)
    count = len(rows)
    if count < 2:
        raise ValueError(f"an interval needs at least 2 values, got {count}")
    # How often each row was drawn: the mean of a draw is then one product.
    counts = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), BOOTSTRAP_SAMPLES)
    means = np.tensordot(counts / count, rows, axes=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return Interval(low, high)


def format_mean(values: Sequence[float]) -> str:
    """`812.4, 95 % interval 790.1 to 833.0`; of one value, only that."""
    mean = f"{np.mean(values):.1f}"
    if len(values) < 2:
        return mean
    low, high = bootstrap_interval(values)
    return f"{mean}, 95 % interval {low:.1f} to {high:.1f}"
