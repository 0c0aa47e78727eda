"""Repeated measurements, for machines that other processes slow down at times."""

from collections.abc import Callable

MAX_ATTEMPTS = 3


def measure_minimum(measure: Callable[[], float], *, stop_at: float, attempts: int = MAX_ATTEMPTS) -> float:
    """Return the minimum of up to `attempts` measurements.

    It stops early once the minimum is at most `stop_at`.
    The minimum is biased downwards: use it to check limits, not to report figures.
    """
    minimum = measure()
    for _ in range(attempts - 1):
        if minimum <= stop_at:
            break
        minimum = min(minimum, measure())
    return minimum
