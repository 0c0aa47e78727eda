import pytest

from benchmarks.loop import loop_config, ratio
from quality.plugin import Figure
from tests.support.attempts import least


@pytest.mark.quality("P10")
@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.simulator
def test_the_loop_costs_little_more_than_its_parts(figure: Figure) -> None:
    config = loop_config("dmc/cartpole_swingup", "cpu")
    figure(least(lambda: ratio(config, rounds=5), enough=1.10))
