"""Exact resume: a resumed trainer has the same state as one that never stopped."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.run_comparison import compare_trees
from manyview.training.resume import _list_commit_changes
from tests.support.checkpoints import train_and_resume
from tests.support.runs import make_short_config


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("method", ["drqv2+mem", "sac+mem", "drqv2+curl+re3"])
def test_a_trainer_resumes_bit_for_bit(tmp_path: Path, method: str, prefetch: bool) -> None:
    """The checkpoint is within an episode, and the replay buffer has wrapped around."""
    config = make_short_config(method, replay={"capacity": 40, "prefetch": prefetch})
    trainer, resumed = train_and_resume(config, tmp_path, steps=57)
    for _ in range(30):
        trainer.advance()
        resumed.advance()
    assert compare_trees(trainer.get_state(), resumed.get_state()) == []
    assert trainer.replay.steps.tobytes() == resumed.replay.steps.tobytes()
    assert all(map(np.array_equal, trainer.replay.frames, resumed.replay.frames))
    for each_trainer in (trainer, resumed):
        each_trainer.close()


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [("a1", "a1", []), ("a1", "b2", ["commit was a1, is b2"]), ("a1", None, []), (None, "b2", [])],
)
def test_another_commit_is_a_change_and_an_unknown_one_is_none(
    before: str | None, now: str | None, expected: list[str]
) -> None:
    assert _list_commit_changes({"commit": before}, {"commit": now}) == expected
