"""Crashes at every file operation of a run that resumes, trains and saves."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shutil import copytree

import pytest

from benchmarks.file_operations import WRITES, Operation, intercept_operations
from benchmarks.run_comparison import compare_runs
from manyview.training import RunDir, checkpoint, run
from manyview.training.runner import Runner
from tests.support.runners import SimulatedCrash, abandon_runner, advance_to, make_quick_config, simulate_crash

CONFIG = make_quick_config()
KILL_FRAME, CHECKPOINT_FRAME = 45, 40


@dataclass(frozen=True)
class KilledRun:
    """Killed run, its uninterrupted reference, and the file operations after its resume."""

    reference: RunDir
    path: Path
    operations: list[Operation]

    def copy_to(self, path: Path) -> RunDir:
        copytree(self.path, path)
        return RunDir(path)


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> KilledRun:
    """Return a run that was killed between two checkpoints."""
    directory = tmp_path_factory.mktemp("crashes")
    reference, run_dir = RunDir(directory / "whole"), RunDir(directory / "killed")
    run(CONFIG, reference)
    runner = Runner(CONFIG, run_dir)
    advance_to(runner, KILL_FRAME)
    abandon_runner(runner)
    operations: list[Operation] = []
    copy = KilledRun(reference, run_dir.path, operations).copy_to(directory / "copy")
    with intercept_operations([copy.path], lambda operation: operations.append(operation)):
        run(CONFIG, copy)
    return KilledRun(reference, run_dir.path, operations)


def crash_at(run_dir: RunDir, number: int, *, torn: bool) -> None:
    """Resume the run and crash it at the file operation with this number."""
    numbers = count()
    should_crash: Callable[[Operation], bool] = lambda _: next(numbers) == number  # noqa: E731
    with simulate_crash(run_dir.path, should_crash, torn=torn), pytest.raises(SimulatedCrash):
        run_and_abandon(Runner(CONFIG, run_dir))


def run_and_abandon(runner: Runner) -> None:
    """Run to the end or to an error, without closing the runner."""
    try:
        runner.run()
    finally:
        abandon_runner(runner)


@pytest.mark.attack("A crash at every file operation of a resume and a save leaves a checkpoint to resume from")
@pytest.mark.quality("D2")
@pytest.mark.long
def test_a_crash_at_any_file_operation_leaves_a_checkpoint_to_resume_from(
    killed_run: KilledRun, tmp_path: Path
) -> None:
    names = {operation.name for operation in killed_run.operations}
    assert names >= {"create", "open", "write", "pwrite", "fsync", "rename", "mkdir", "unlink", "rmdir"}
    failures = {}
    for number, operation in enumerate(killed_run.operations):
        for torn in {False, operation.name in WRITES}:
            run_dir = killed_run.copy_to(tmp_path / f"{number}{torn}")
            crash_at(run_dir, number, torn=torn)
            label = f"{number} {operation.name} {operation.path.name}{' torn' if torn else ''}"
            newest, _ = checkpoint.load_newest_checkpoint(run_dir.checkpoints_dir)
            if int(newest.name) < CHECKPOINT_FRAME:
                failures[label] = [f"goes on from {newest.name}"]
            if not run_dir.is_finished:
                run(CONFIG, run_dir)
            if differences := compare_runs(killed_run.reference, run_dir):
                failures[label] = differences
    assert failures == {}


@pytest.mark.quality("D2")
def test_an_older_checkpoint_that_becomes_unreadable_does_not_end_a_run(killed_run: KilledRun, tmp_path: Path) -> None:
    run_dir = killed_run.copy_to(tmp_path / "copy")
    runner = Runner(CONFIG, run_dir)
    (run_dir.checkpoints_dir / "000000020" / "manifest.json").write_bytes(b"\0")
    try:
        assert runner.run()
    finally:
        runner.close()
    assert [path.name for path in checkpoint.list_checkpoints(run_dir.checkpoints_dir)] == ["000000060", "000000040"]


def test_a_lost_checkpoint_is_found(killed_run: KilledRun, tmp_path: Path) -> None:
    """Without it, the run falls back to an older one, so the test of crashes can fail."""
    run_dir = killed_run.copy_to(tmp_path / "copy")
    (run_dir.checkpoints_dir / checkpoint.format_checkpoint_name(CHECKPOINT_FRAME) / "SHA256SUMS").unlink()
    with suppress(SimulatedCrash):
        crash_at(run_dir, len(killed_run.operations) // 2, torn=False)
    newest, _ = checkpoint.load_newest_checkpoint(run_dir.checkpoints_dir)
    assert int(newest.name) < CHECKPOINT_FRAME
