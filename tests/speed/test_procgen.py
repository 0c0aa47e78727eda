"""QUALITY P9 for Procgen: transitions a second against bare EnvPool. `benchmarks/procgen_speed.py` says how."""

import pytest

from benchmarks.procgen_speed import measure, table
from manyview.envs.procgen.suite import PAPER
from quality.plugin import Figure


@pytest.mark.quality("P9")
@pytest.mark.timing
@pytest.mark.simulator
def test_true_transitions_come_as_fast_as_bare_envpools_steps(figure: Figure) -> None:
    speeds = {game: measure(game, rounds=80) for game in PAPER}
    print(table(speeds))
    figure(min(speed.ratio for speed in speeds.values()), "procgen")
