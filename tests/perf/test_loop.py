"""QUALITY P10: the training loop relative to its bare parts."""

import pytest

from benchmarks.loop import make_loop_config, measure_ratio
from quality.plugin import Figure
from tests.support.timing import measure_minimum


@pytest.mark.quality("P10")
@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.simulator
def test_the_loop_costs_little_more_than_its_parts(figure: Figure) -> None:
    config = make_loop_config("dmc/cartpole_swingup", "cpu")
    figure(measure_minimum(lambda: measure_ratio(config, rounds=5), stop_at=1.10))
