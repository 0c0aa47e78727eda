"""QUALITY P9 for Procgen: transitions a second against bare EnvPool. See `benchmarks/procgen_speed.py`."""

import pytest

from benchmarks.procgen_speed import Speed, format_table, measure
from quality.plugin import Figure

MAX_ATTEMPTS = 3
GAMES = ("bigfish", "coinrun", "starpilot")
"""Games of the gate; `python -m benchmarks.procgen_speed` measures all nine of the paper."""


def measure_best(game: str) -> Speed:
    """Return the best of up to `MAX_ATTEMPTS` measurements; stop early at a ratio of 0.97.

    The threads of one pool sometimes share a core during a whole measurement.
    """
    best = measure(game, rounds=40)
    for _ in range(MAX_ATTEMPTS - 1):
        if best.ratio >= 0.97:
            break
        best = max(best, measure(game, rounds=40), key=lambda speed: speed.ratio)
    return best


@pytest.mark.quality("P9")
@pytest.mark.timing
@pytest.mark.simulator
def test_true_transitions_come_as_fast_as_bare_envpools_steps(figure: Figure) -> None:
    speeds = {game: measure_best(game) for game in GAMES}
    print(format_table(speeds))
    figure(min(speed.ratio for speed in speeds.values()), "procgen")
