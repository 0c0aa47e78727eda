"""Stopped and resumed is as never stopped: the whole state, to the bit."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.run_comparison import compare_trees
from manyview.training.resume import _list_commit_changes
from tests.support.checkpoints import train_and_resume
from tests.support.runs import make_short_config


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("method", ["drqv2+mem", "sac+mem", "drqv2+curl+re3"])
def test_a_trainer_goes_on_from_its_checkpoint_to_the_bit(tmp_path: Path, method: str, prefetch: bool) -> None:
    """In mid-episode, with a replay that has wrapped."""
    config = make_short_config(method, replay={"capacity": 40, "prefetch": prefetch})
    trainer, twin = train_and_resume(config, tmp_path, steps=57)
    for _ in range(30):
        trainer.advance()
        twin.advance()
    assert compare_trees(trainer.get_state(), twin.get_state()) == []
    assert trainer.replay.steps.tobytes() == twin.replay.steps.tobytes()
    assert all(map(np.array_equal, trainer.replay.frames, twin.replay.frames))
    for each in (trainer, twin):
        each.close()


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [("a1", "a1", []), ("a1", "b2", ["commit was a1, is b2"]), ("a1", None, []), (None, "b2", [])],
)
def test_another_commit_is_a_change_and_an_unknown_one_is_none(
    before: str | None, now: str | None, expected: list[str]
) -> None:
    assert _list_commit_changes({"commit": before}, {"commit": now}) == expected
