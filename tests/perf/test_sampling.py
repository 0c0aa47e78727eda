"""What sampling costs against the bare copying, on this machine and in this run."""

from collections.abc import Callable
from operator import truediv

import pytest

from benchmarks.sampling import time_against_size, time_against_take, time_shift
from quality.plugin import Figure
from tests.support.timing import measure_minimum

ATTEMPTS = 5


def least_ratio(measure: Callable[[], tuple[float, float]], *, enough: float) -> float:
    return measure_minimum(lambda: truediv(*measure()), stop_at=enough, attempts=ATTEMPTS)


@pytest.mark.timing
@pytest.mark.quality("P6")
def test_a_batch_costs_little_more_than_a_bare_take_of_its_bytes(figure: Figure) -> None:
    figure(least_ratio(time_against_take, enough=1.1), "against a take")


@pytest.mark.timing
@pytest.mark.quality("P6")
def test_a_batch_of_five_million_steps_costs_what_one_of_fifty_thousand_does(figure: Figure) -> None:
    figure(least_ratio(time_against_size, enough=1.05), "5M against 50k steps")


@pytest.mark.timing
@pytest.mark.quality("P8")
def test_a_shift_by_whole_pixels_is_much_faster_than_interpolating(figure: Figure) -> None:
    figure(1 / least_ratio(time_shift, enough=1 / 5), "times faster")
