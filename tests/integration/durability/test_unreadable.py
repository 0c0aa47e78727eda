"""Transient read errors of a disk or file server cost no checkpoint."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.file_operations import Operation, intercept_operations
from benchmarks.run_comparison import compare_runs
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, checkpoint, run
from manyview.training.runner import Runner
from manyview.utils import files
from tests.support.runners import abandon_runner, advance_to, make_quick_config

CONFIG = make_quick_config()
READ_ERRORS = pytest.mark.attack("A checkpoint that cannot be read for a moment is read again, and never deleted")


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Return the directory of a killed run with checkpoints at 0, 20 and 40 frames."""
    runner = Runner(CONFIG, RunDir(tmp_path / "run"))
    advance_to(runner, 45)
    abandon_runner(runner)
    return runner.run_dir


@contextmanager
def fail_reads(directory: Path, error_number: int, *, should_fail: Callable[[int], bool]) -> Iterator[None]:
    """Fail the reads in a directory for whose number, from 0, `should_fail` returns true."""
    reads: list[Operation] = []

    def handle(operation: Operation) -> None:
        if operation.name == "open" and operation.path.parent == directory:
            reads.append(operation)
            if should_fail(len(reads) - 1):
                raise OSError(error_number, os.strerror(error_number))

    with intercept_operations([directory], handle):
        yield


def list_resume_checkpoints(run_dir: RunDir) -> list[str]:
    """Return the names of the checkpoints from which the run resumed."""
    return [record["checkpoint"] for record in read_records(run_dir.metrics_file) if record["kind"] == "resume"]


@READ_ERRORS
@pytest.mark.quality("D3")
@pytest.mark.parametrize("error_number", [errno.EIO, errno.ESTALE])
def test_a_transient_read_error_is_retried(run_dir: RunDir, tmp_path: Path, error_number: int) -> None:
    with fail_reads(run_dir.checkpoints_dir / "000000040", error_number, should_fail=lambda read: read < 2):
        run(CONFIG, run_dir)
    assert list_resume_checkpoints(run_dir) == ["000000040"]
    run(CONFIG, reference := RunDir(tmp_path / "whole"))
    assert compare_runs(reference, run_dir) == []


@READ_ERRORS
@pytest.mark.quality("D3")
def test_a_checkpoint_that_stays_unreadable_is_set_aside_whole(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "RETRY_PAUSES_S", (0.0,))
    newest = run_dir.checkpoints_dir / "000000040"
    before = {path.name: path.read_bytes() for path in newest.iterdir()}
    with fail_reads(newest, errno.EIO, should_fail=lambda _: True):
        runner = Runner(CONFIG, run_dir)
    abandon_runner(runner)
    assert runner._resume_info is not None
    assert runner._resume_info.checkpoint_dir.name == "000000020"
    (unreadable_dir,) = checkpoint.list_unreadable(run_dir.checkpoints_dir)
    assert unreadable_dir.name == "000000040.unreadable"
    assert {path.name: path.read_bytes() for path in unreadable_dir.iterdir()} == before
    assert "000000040" not in [path.name for path in checkpoint.list_checkpoints(run_dir.checkpoints_dir)]
    run(CONFIG, run_dir)
    assert [path.name for path in checkpoint.list_checkpoints(run_dir.checkpoints_dir)] == [
        "000000060",
        "000000040",
        "000000020",
    ]


@READ_ERRORS
@pytest.mark.quality("D3")
def test_the_number_of_unreadable_checkpoints_is_limited(tmp_path: Path) -> None:
    for frames in range(10):
        checkpoint_dir = tmp_path / checkpoint.format_checkpoint_name(frames)
        checkpoint_dir.mkdir()
        (checkpoint_dir / checkpoint.VALUES_FILE).write_text("{")
        checkpoint.move_checkpoint_aside(checkpoint_dir)
    assert checkpoint.list_checkpoints(tmp_path) == []
    checkpoint.prune_checkpoints(tmp_path, 3)
    assert [path.name for path in checkpoint.list_unreadable(tmp_path)] == [
        f"{checkpoint.format_checkpoint_name(frames)}.unreadable" for frames in (9, 8, 7)
    ]


@READ_ERRORS
@pytest.mark.quality("D3")
def test_a_checkpoint_directory_that_cannot_be_listed_is_an_error(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without checkpoints would restart and truncate its records."""
    before = run_dir.metrics_file.read_bytes()
    original_iterdir = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path == run_dir.checkpoints_dir:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original_iterdir(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    monkeypatch.setattr(
        Path, "glob", lambda path, _: iter([]) if path == run_dir.checkpoints_dir else original_iterdir(path)
    )
    with pytest.raises(PermissionError, match="checkpoints"):
        Runner(CONFIG, run_dir)
    assert run_dir.metrics_file.read_bytes() == before
