"""What sampling costs against the bare copying, on this machine and in this run."""

import pytest

from benchmarks.sampling import against_size, against_take, shifting
from quality.plugin import Figure


@pytest.mark.timing
@pytest.mark.quality("P6")
def test_a_batch_costs_little_more_than_a_bare_take_of_its_bytes(figure: Figure) -> None:
    ours, bare = against_take()
    figure(ours / bare, "against a take")


@pytest.mark.timing
@pytest.mark.quality("P6")
def test_a_batch_of_five_million_steps_costs_what_one_of_fifty_thousand_does(figure: Figure) -> None:
    large, small = against_size()
    figure(large / small, "5M against 50k steps")


@pytest.mark.timing
@pytest.mark.quality("P8")
def test_a_shift_by_whole_pixels_is_much_faster_than_interpolating(figure: Figure) -> None:
    ours, theirs = shifting()
    figure(theirs / ours, "times faster")
