"""Speed of environments relative to their bare simulators, and memory leaks."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from quality.plugin import Figure

pytestmark = pytest.mark.simulator
pytest.importorskip("dm_control", reason='pip install "manyview[dmc]"')

from benchmarks.environments import MEMORY, measure_leak_mb, measure_speed  # noqa: E402

MAX_ATTEMPTS = 3
TASKS = ("ball_in_cup_catch", "cheetah_run", "quadruped_run", "reach_duplo")
"""Tasks of the gate; `python -m benchmarks.environments speed` measures all of the paper."""


@pytest.mark.timing
@pytest.mark.quality("P9")
@pytest.mark.parametrize("task", TASKS)
def test_a_step_costs_what_dm_control_needs_for_the_same_pixels(task: str, figure: Figure) -> None:
    """Quality `fast` shows overhead best; `benchmarks.environments` also measures `smooth`."""
    for _ in range(MAX_ATTEMPTS):
        env_ms, bare_ms = measure_speed(task, "fast", blocks=16, steps=5)
        if bare_ms / env_ms >= 0.97:
            break  # otherwise another process may have slowed the machine
    figure(bare_ms / env_ms, "dmc")


@pytest.mark.quality("E3")
@pytest.mark.skipif(not MEMORY.exists(), reason="reads the memory in use from /proc")
@pytest.mark.long
def test_environments_leak_no_memory(figure: Figure) -> None:
    """A new process measures it: this one still frees and takes memory of other tests."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        figure(executor.submit(measure_leak_mb, "dmc/cheetah_run").result(timeout=600), "MB each")
