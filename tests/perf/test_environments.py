"""Environments against their bare simulators, side by side."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from quality.plugin import Figure

pytestmark = pytest.mark.simulator
pytest.importorskip("dm_control", reason='pip install "manyview[dmc]"')

from benchmarks.environments import MEMORY, measure_leak_mb, measure_speed  # noqa: E402

ATTEMPTS = 3
TASKS = ("ball_in_cup_catch", "cheetah_run", "quadruped_run", "reach_duplo")
"""For the gate; `python -m benchmarks.environments speed` has all of the paper."""


@pytest.mark.timing
@pytest.mark.quality("P9")
@pytest.mark.parametrize("task", TASKS)
def test_a_step_costs_what_dm_control_needs_for_the_same_pixels(task: str, figure: Figure) -> None:
    """At `fast`, where drawing is cheap and whatever we add would show; `benchmarks.environments` has `smooth` too."""
    for _ in range(ATTEMPTS):
        ours, bare = measure_speed(task, "fast", blocks=16, steps=5)
        if bare / ours >= 0.97:
            break  # otherwise something else may have been running
    figure(bare / ours, "dmc")


@pytest.mark.quality("E3")
@pytest.mark.skipif(not MEMORY.exists(), reason="reads the memory in use from /proc")
@pytest.mark.long
def test_environments_leave_nothing_behind(figure: Figure) -> None:
    """In a process of its own: this one still frees and takes what other tests needed."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        figure(process.submit(measure_leak_mb, "dmc/cheetah_run").result(timeout=600), "MB each")
