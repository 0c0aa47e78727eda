import pytest

from benchmarks.loop import make_loop_config, measure_ratio
from quality.plugin import Figure
from tests.support.attempts import least


@pytest.mark.quality("P10")
@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.simulator
def test_the_loop_costs_little_more_than_its_parts(figure: Figure) -> None:
    config = make_loop_config("dmc/cartpole_swingup", "cpu")
    figure(least(lambda: measure_ratio(config, rounds=5), enough=1.10))
