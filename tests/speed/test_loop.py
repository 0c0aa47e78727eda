import pytest

from benchmarks.loop import loop_config, ratio
from quality.plugin import Figure

ATTEMPTS, ENOUGH = 3, 1.10


@pytest.mark.quality("P10")
@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.simulator
def test_the_loop_costs_little_more_than_its_parts(figure: Figure) -> None:
    config = loop_config("dmc/cartpole_swingup", "cpu")
    best = ratio(config, rounds=5)
    for _ in range(ATTEMPTS - 1):
        if best <= ENOUGH:
            break
        best = min(best, ratio(config, rounds=5))
    figure(best)
