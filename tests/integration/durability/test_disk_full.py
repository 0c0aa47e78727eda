"""A full disk at any write of a run: training continues, and saving too once there is space again."""

import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.file_operations import WRITES, Operation, intercept_operations
from benchmarks.kills import CASES, run_reference
from benchmarks.launcher import Launcher, Request
from benchmarks.run_comparison import compare_trees, load_comparable_state, read_replay
from manyview.config.overrides import to_plain
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, checkpoint, run
from manyview.training.run_dir import SaveFailedError
from manyview.training.runner import Runner
from tests.support.runners import make_quick_config, open_runner, read_warnings
from tests.unit.training.test_runner import inject_nan_rewards

CONFIG = make_quick_config()
SPACE_OPERATIONS = ("create", "mkdir", "rename", "fsync", *WRITES)
FULL_DISK = pytest.mark.attack("A full disk costs a run nothing but a checkpoint, and is told")
NUM_FAILURES = 5
"""Number of operations that fail before there is space again."""


def raise_no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def simulate_full_disk(run_dir: RunDir, should_fail: Callable[[int], bool]) -> Iterator[list[Operation]]:
    """Fail the operations for whose number `should_fail` returns true, writes halfway.

    It yields the operations that need space; their numbers start at 0.
    """
    operations: list[Operation] = []

    def handle(operation: Operation) -> Callable[[], None] | None:
        if operation.name not in SPACE_OPERATIONS:
            return None
        operations.append(operation)
        if not should_fail(len(operations) - 1):
            return None
        if operation.name not in WRITES:
            raise_no_space()
        return raise_no_space

    with intercept_operations([run_dir.path], handle):
        yield operations


def run_on_full_disk(run_dir: RunDir, should_fail: Callable[[int], bool]) -> bool:
    """Run on a disk that is full at some operations; return whether the run finished."""
    runner = Runner(CONFIG, run_dir)
    try:
        with simulate_full_disk(run_dir, should_fail):
            return runner.run()
    except SaveFailedError:
        return False
    finally:
        runner.close()


def compare_ends(first: RunDir, second: RunDir) -> list[str]:
    """Return the differences of two finished runs, apart from segment boundaries and warnings."""
    newest = [checkpoint.load_newest_checkpoint(run.checkpoints_dir)[0] for run in (first, second)]
    trees = [load_comparable_state(path)["tree"] for path in newest]
    replays = read_replay(first, newest[0]), read_replay(second, newest[1])
    return (
        compare_trees(*trees)
        + compare_trees(*replays)
        + compare_trees(read_comparable_records(first), read_comparable_records(second))
    )


def read_comparable_records(run_dir: RunDir) -> list[object]:
    """Return the records that do not depend on time or interruptions."""
    return [
        {name: value for name, value in record.items() if name != "seconds"}
        for record in read_records(run_dir.metrics_file)
        if record["kind"] not in ("start", "resume", "warning")
    ]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return the directory of an uninterrupted run."""
    run_dir = RunDir(tmp_path_factory.mktemp("disk") / "whole")
    run(CONFIG, run_dir)
    return run_dir


@FULL_DISK
@pytest.mark.quality("D5")
@pytest.mark.long
def test_a_disk_that_is_full_at_any_write_costs_nothing_but_a_checkpoint(reference: RunDir, tmp_path: Path) -> None:
    normal_run = RunDir(tmp_path / "plain")
    runner = Runner(CONFIG, normal_run)
    with simulate_full_disk(normal_run, lambda _: False) as operations:
        runner.run()
    runner.close()
    failures, num_warned = {}, 0
    second_save = next(number for number, operation in enumerate(operations) if operation.path.match("000000020.*"))
    for first in range(second_save, len(operations), 2):  # the first save has the operations of the second
        run_dir = RunDir(tmp_path / str(first))
        is_done = run_on_full_disk(run_dir, lambda number, first=first: first <= number < first + NUM_FAILURES)  # type: ignore[misc]
        num_warned += bool(read_warnings(run_dir))
        if not (is_done or run_dir.is_finished):  # its last checkpoint could not be written: the same command resumes
            run(CONFIG, run_dir)
        if differences := compare_ends(reference, run_dir):
            failures[f"{first} {operations[first].name} {operations[first].path.name}"] = differences
    assert failures == {}
    assert num_warned > (len(operations) - second_save) / 4


@FULL_DISK
@pytest.mark.quality("D5")
def test_a_full_disk_keeps_the_last_checkpoint_and_is_reported(reference: RunDir, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    with open_runner(CONFIG, run_dir, frames=25) as runner:
        with simulate_full_disk(run_dir, lambda _: True):
            while runner.trainer.counters.frames < 45:
                runner.advance()
            runner.writer.wait()
        assert [path.name for path in checkpoint.list_checkpoints(run_dir.checkpoints_dir)] == [
            "000000020",
            "000000000",
        ]
        assert checkpoint.load_newest_checkpoint(run_dir.checkpoints_dir)[0].name == "000000020"
        runner.run()
    assert any("No space left on device" in text for text in read_warnings(run_dir))
    assert [path.name for path in checkpoint.list_checkpoints(run_dir.checkpoints_dir)] == [
        "000000060",
        "000000020",
        "000000000",
    ]
    assert compare_ends(reference, run_dir) == []


@FULL_DISK
@pytest.mark.quality("D5")
def test_a_run_whose_last_checkpoint_cannot_be_written_has_not_finished(reference: RunDir, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    expected_error = pytest.raises(SaveFailedError, match=r"000000060 .*No space left .* same")
    with open_runner(CONFIG, run_dir, frames=59) as runner, simulate_full_disk(run_dir, lambda _: True), expected_error:
        runner.run()
    assert not run_dir.is_finished
    assert run(CONFIG, run_dir)
    assert compare_ends(reference, run_dir) == []


@pytest.mark.quality("D5")
def test_bad_updates_roll_back_to_an_existing_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest checkpoint could not be written."""
    inject_nan_rewards(monkeypatch, range(50, 53))
    config, run_dir = make_quick_config(schedule={"seed_frames": 48}), RunDir(tmp_path / "run")
    with open_runner(config, run_dir, frames=39) as runner:
        with simulate_full_disk(run_dir, lambda _: True):
            runner.advance()
            runner.writer.wait()
        assert runner.run()
    assert [text for text in read_warnings(run_dir) if text.endswith("; back to the agent of 000000020")]


@pytest.mark.slow
@FULL_DISK
@pytest.mark.quality("D5")
@pytest.mark.xdist_group("processes")
def test_a_process_with_a_file_size_limit_trains_to_the_end(tmp_path: Path, launcher: Launcher) -> None:
    """The system raises the error here, not the test."""
    run_dir = RunDir(tmp_path / "run")
    command = ["train", CONFIG.task, "--config", str(tmp_path / "config.json"), "--out", str(run_dir.path)]
    (tmp_path / "config.json").write_text(json.dumps(to_plain(CONFIG)))
    output = str(tmp_path / "said")
    limited_request = Request(command, output=output, watched_dirs=[], patches="tests.support.patches:limit_file_size")
    result = launcher.start(limited_request).wait()
    assert result.status == 1, result.output
    assert "File too large" in result.output
    assert "then resume with the same command" in result.output
    assert "60 frames  return" in result.output, "it trained to the end"
    assert launcher.start(Request(command, output=output, watched_dirs=[])).wait().status == 0
    assert run_dir.is_finished


@FULL_DISK
@pytest.mark.long
@pytest.mark.quality("D5")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small file system")
@pytest.mark.xdist_group("processes")
def test_a_run_on_a_file_system_that_is_full_trains_on_and_is_saved_once_there_is_room(
    tmp_path: Path, launcher: Launcher
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=128k", "none", str(disk)]
    subprocess.run(mount, check=True, timeout=30)
    try:
        case, run_dir = CASES[0], RunDir(disk / "run")
        reference = run_reference(case, tmp_path / "whole", launcher).run_dir
        request = Request(case.command(run_dir.path), output=str(tmp_path / "said"), watched_dirs=[])
        result = launcher.start(request).wait()
        assert result.status == 1, result.output
        assert "No space left on device" in result.output
        subprocess.run(["/bin/mount", "-o", "remount,size=64m", str(disk)], check=True, timeout=30)
        result = launcher.start(request).wait()
        assert result.status == 0, result.output
        newest = [checkpoint.list_checkpoints(run.checkpoints_dir)[0] for run in (reference, run_dir)]
        assert compare_trees(*(load_comparable_state(path) for path in newest)) == []
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(disk)], check=True, timeout=30)
