"""QUALITY P7 and P11: size of the segment log, and waits of the learner for checkpoints."""

from statistics import median

import pytest

from benchmarks.saving import compute_log_kb_per_step, measure_waits, record_replay
from quality.plugin import Figure
from quality.rows import ROWS
from tests.support.timing import measure_minimum

STEPS = 256


@pytest.mark.simulator
@pytest.mark.quality("P7")
@pytest.mark.parametrize("task", ["cheetah_run", "pendulum_swingup"])
def test_a_step_in_the_log_is_small(task: str, figure: Figure) -> None:
    """Of five tasks, these two have the images that change most."""
    figure(compute_log_kb_per_step(record_replay(task, steps=STEPS), steps=STEPS), "kB in the log")


@pytest.mark.simulator
@pytest.mark.timing
@pytest.mark.quality("P11")
def test_the_learner_hardly_waits_for_a_checkpoint(figure: Figure) -> None:
    bar = ROWS["P11"].bars["s"].value
    figure(measure_minimum(lambda: median(measure_waits(steps=10_000, saves=5, image_size=84)), stop_at=bar), "s")
