"""Steps after a checkpoint are repeated after a resume, and nothing is stored twice."""

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
    run_dir, reference = RunDir(tmp_path / "run"), RunDir(tmp_path / "whole")
    run(config, reference)
    runner = Runner(config, run_dir)
    advance_to(runner, 60)
    trainer = runner.trainer
    assert isinstance(trainer, OffPolicyTrainer)
    arrays = [trainer.replay.steps.copy(), *(ring.copy() for ring in trainer.replay.frames)]
    inserted, updates = trainer.replay.inserted, trainer.counters.updates
    while trainer.counters.frames < 71:
        runner.advance()
    assert trainer.replay.inserted > inserted
    abandon_runner(runner)

    resumed_runner = Runner(config, run_dir)
    assert isinstance(resumed_runner.trainer, OffPolicyTrainer)
    resumed_replay = resumed_runner.trainer.replay
    assert (resumed_replay.inserted, resumed_runner.trainer.counters.updates) == (inserted, updates)
    for original, restored in zip(arrays, [resumed_replay.steps, *resumed_replay.frames], strict=True):
        assert np.array_equal(original, restored)
    resumed_runner.run()
    resumed_runner.close()
    train_records = [record for record in read_records(run_dir.metrics_file) if record["kind"] == "train"]
    counts = [(record["steps"], record["updates"]) for record in train_records]
    assert counts == [(steps, steps - 29) for steps in range(30, 76)], "an update a step, before and after"
    assert compare_runs(reference, run_dir) == []
