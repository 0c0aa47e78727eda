"""Environments against their bare simulators, side by side."""

import gc
import os
from pathlib import Path

import pytest

from quality.plugin import Figure

pytestmark = pytest.mark.simulator
pytest.importorskip("dm_control", reason='pip install "manyview[dmc]"')

from benchmarks.environments import speed  # noqa: E402
from manyview.envs import make  # noqa: E402
from manyview.envs.dmc.suite import PAPER_TASKS  # noqa: E402

ATTEMPTS = 3


@pytest.mark.timing
@pytest.mark.quality("P9")
@pytest.mark.parametrize("task", PAPER_TASKS)
def test_a_step_costs_what_dm_control_needs_for_the_same_pixels(task: str, figure: Figure) -> None:
    """At `fast`, where drawing is cheap and whatever we add would show; `benchmarks.environments` has both."""
    for _ in range(ATTEMPTS):
        ours, bare = speed(task, "fast", blocks=16, steps=5)
        if bare / ours >= 0.97:
            break  # otherwise something else may have been running
    figure(bare / ours, "dmc")


MEMORY = Path("/proc/self/statm")


def resident_bytes() -> int:
    return int(MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.quality("E3")
@pytest.mark.skipif(not MEMORY.exists(), reason="reads the memory in use from /proc")
def test_environments_leave_nothing_behind(figure: Figure) -> None:
    """100 made, drawn and closed. The low points count: the allocator keeps and returns blocks of megabytes."""
    seen = []
    for number in range(110):
        env = make("dmc/cheetah_run", render_quality="fast")
        env.reset(seed=number)
        env.step(env.action_space.sample())
        env.close()
        del env
        gc.collect()
        if number >= 10:
            seen.append(resident_bytes())
    figure(max(0.0, (min(seen[50:]) - min(seen[:50])) / 50e6), "MB each")
