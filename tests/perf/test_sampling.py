"""QUALITY P6 and P8: sampling relative to bare copies on the same machine."""

from collections.abc import Callable
from operator import truediv

import pytest

from benchmarks.sampling import time_against_size, time_against_take, time_shift
from quality.plugin import Figure
from tests.support.timing import measure_minimum

MAX_ATTEMPTS = 5


def measure_min_ratio(measure: Callable[[], tuple[float, float]], *, stop_at: float) -> float:
    """Return the minimum ratio of two times over a few measurements."""
    return measure_minimum(lambda: truediv(*measure()), stop_at=stop_at, attempts=MAX_ATTEMPTS)


@pytest.mark.timing
@pytest.mark.quality("P6")
def test_a_batch_costs_little_more_than_a_bare_take_of_its_bytes(figure: Figure) -> None:
    figure(measure_min_ratio(time_against_take, stop_at=1.1), "against a take")


@pytest.mark.timing
@pytest.mark.quality("P6")
def test_a_batch_of_five_million_steps_costs_what_one_of_fifty_thousand_does(figure: Figure) -> None:
    figure(measure_min_ratio(time_against_size, stop_at=1.05), "5M against 50k steps")


@pytest.mark.timing
@pytest.mark.quality("P8")
def test_a_shift_by_whole_pixels_is_much_faster_than_interpolating(figure: Figure) -> None:
    figure(1 / measure_min_ratio(time_shift, stop_at=1 / 5), "times faster")
