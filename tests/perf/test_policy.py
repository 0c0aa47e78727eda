"""QUALITY P15: an action of a loaded and of an exported policy. Ratios of CPU times measured in turns on one thread."""

from collections.abc import Iterator

import pytest
import torch

from benchmarks.policy import PolicyTimes
from quality.plugin import Figure
from tests.support.timing import measure_minimum

BAR = 1.2


@pytest.fixture(scope="module")
def times() -> Iterator[PolicyTimes]:
    """Yield the timer of DrQ-v2 with MEM at paper size: 3 views of 84 pixels, 3 frames."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield PolicyTimes(pixels=84, trunk="paper")
    torch.set_num_threads(threads)


@pytest.mark.quality("P15")
@pytest.mark.timing
@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_an_action_takes_little_longer_than_the_bare_forward_pass(
    backend: str, times: PolicyTimes, figure: Figure
) -> None:
    def measure() -> float:
        seconds = times.measure(rounds=20)
        return seconds[backend] / seconds["bare"]

    figure(measure_minimum(measure, stop_at=BAR), backend)
