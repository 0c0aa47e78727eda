"""Runs of a sweep file become rows of the study's table."""

import os
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from experiments.study import list_missing, train_and_keep
from experiments.tables import read_runs, read_settings
from manyview.scale.sweep import PlannedRun, read_sweep

SWEEP = """
tasks = ["toy/identity_continuous"]
methods = ["sac+none"]
seeds = [101, 102]
preset = "minute"
out = "{out}"

[set]
"schedule.frames" = 20
"schedule.seed_frames" = 10
"schedule.random_steps" = 10
"replay.batch_size" = 4
"agent.hidden" = 8
"evaluation.every_frames" = 10
"evaluation.episodes" = 1

[variants.slow]
"agent.lr" = 0.0001
[variants.fast]
"agent.lr" = 0.001
"""


@pytest.fixture
def planned(tmp_path: Path) -> list[PlannedRun]:
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP.format(out=tmp_path / "runs"))
    return read_sweep(file).plan_runs()


def test_a_run_is_added_once_with_its_variant(planned: list[PlannedRun], tmp_path: Path) -> None:
    assert [(run.variant, run.config.seed) for run in planned] == [
        ("slow", 101),
        ("fast", 101),
        ("slow", 102),
        ("fast", 102),
    ]
    train_and_keep(planned[1], "toys", tmp_path)
    assert list_missing(planned, "toys", tmp_path) == [planned[0], *planned[2:]]
    (kept,) = read_runs("toys", results=tmp_path)
    assert (kept.variant, kept.method, kept.seed) == ("fast", "sac+none", 101)
    assert kept.series("return")[0].tolist() == [0, 10, 20]
    assert read_settings(kept, results=tmp_path)["agent.sac.lr"] == 0.001


def test_a_run_that_fails_is_not_added(
    planned: list[PlannedRun], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    planned[0].run_dir.parent.mkdir(parents=True)
    planned[0].run_dir.write_text("a file where the run wants its directory")
    train_and_keep(planned[0], "toys", tmp_path)
    assert "not finished, exit code 1" in capfd.readouterr().out
    assert list_missing(planned, "toys", tmp_path) == planned


def wait_for_sigterm(run: PlannedRun) -> None:
    run.run_dir.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: (run.run_dir / "stopped").touch())
    (run.run_dir / "started").touch()
    wait_for(run.run_dir / "stopped")


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < deadline, file
        time.sleep(0.1)


def test_a_killed_command_leaves_no_run_behind(planned: list[PlannedRun], tmp_path: Path) -> None:
    command = get_context("spawn").Process(
        target=train_and_keep, args=(planned[0], "toys", tmp_path), kwargs={"train": wait_for_sigterm}
    )
    command.start()
    wait_for(planned[0].run_dir / "started")
    assert command.pid is not None
    os.kill(command.pid, signal.SIGKILL)
    command.join()
    wait_for(planned[0].run_dir / "stopped")
