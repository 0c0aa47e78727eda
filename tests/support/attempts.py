"""On a shared machine a neighbour can slow one side of a comparison for a while: so measure again, a few times."""

from collections.abc import Callable

ATTEMPTS = 3


def least(measure: Callable[[], float], *, enough: float, attempts: int = ATTEMPTS) -> float:
    """The least of some measurements, and no more of them than needed. Biased downwards: a guard and not a figure."""
    best = measure()
    for _ in range(attempts - 1):
        if best <= enough:
            break
        best = min(best, measure())
    return best
