"""What came after a checkpoint comes again, and nothing of it is there twice."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.run_comparison import compare_runs
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, run
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.runner import Runner
from tests.support.runners import abandon_runner, advance_to
from tests.support.runs import make_short_config


@pytest.mark.quality("D4")
@pytest.mark.parametrize("prefetch", [False, True])
def test_a_resumed_replay_holds_what_the_checkpoint_had_once_and_in_order(tmp_path: Path, prefetch: bool) -> None:
    replay = {"capacity": 35, "prefetch": prefetch}
    config = make_short_config(schedule={"frames": 75}, replay=replay, logging={"every_steps": 1, "keep_replay": True})
    folder, whole = RunDir(tmp_path / "run"), RunDir(tmp_path / "whole")
    run(config, whole)
    session = Runner(config, folder)
    advance_to(session, 60)
    trainer = session.trainer
    assert isinstance(trainer, OffPolicyTrainer)
    held = [trainer.replay.steps.copy(), *(ring.copy() for ring in trainer.replay.frames)]
    inserted, updates = trainer.replay.inserted, trainer.counters.updates
    while trainer.counters.frames < 71:
        session.advance()
    assert trainer.replay.inserted > inserted
    abandon_runner(session)

    resumed = Runner(config, folder)
    assert isinstance(resumed.trainer, OffPolicyTrainer)
    replay_again = resumed.trainer.replay
    assert (replay_again.inserted, resumed.trainer.counters.updates) == (inserted, updates)
    for before, now in zip(held, [replay_again.steps, *replay_again.frames], strict=True):
        assert np.array_equal(before, now)
    resumed.run()
    resumed.close()
    train = [record for record in read_records(folder.metrics_file) if record["kind"] == "train"]
    told = [(record["steps"], record["updates"]) for record in train]
    assert told == [(steps, steps - 29) for steps in range(30, 76)], "an update a step, before and after"
    assert compare_runs(whole, folder) == []
