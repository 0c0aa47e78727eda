"""A disk or file server that fails for a moment costs no checkpoint."""

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
HOLDS = pytest.mark.attack("A checkpoint that cannot be read for a moment is read again, and never deleted")


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    """A run that was killed, with checkpoints of 0, 20 and 40 frames."""
    session = Runner(CONFIG, RunDir(tmp_path / "run"))
    advance_to(session, 45)
    abandon_runner(session)
    return session.run_dir


@contextmanager
def failing_reads(folder: Path, number: int, *, fails: Callable[[int], bool]) -> Iterator[None]:
    """While this lasts, those reads in a folder fail of which `fails` says so, counted from 0."""
    met: list[Operation] = []

    def meet(operation: Operation) -> None:
        if operation.name == "open" and operation.path.parent == folder:
            met.append(operation)
            if fails(len(met) - 1):
                raise OSError(number, os.strerror(number))

    with intercept_operations([folder], meet):
        yield


def resumed_at(folder: RunDir) -> list[str]:
    return [record["checkpoint"] for record in read_records(folder.metrics_file) if record["kind"] == "resume"]


@HOLDS
@pytest.mark.quality("D3")
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_an_error_that_is_gone_a_moment_later_is_not_noticed(folder: RunDir, tmp_path: Path, number: int) -> None:
    with failing_reads(folder.checkpoints_dir / "000000040", number, fails=lambda read: read < 2):
        run(CONFIG, folder)
    assert resumed_at(folder) == ["000000040"]
    run(CONFIG, whole := RunDir(tmp_path / "whole"))
    assert compare_runs(whole, folder) == []


@HOLDS
@pytest.mark.quality("D3")
def test_a_checkpoint_that_stays_unreadable_is_set_aside_whole(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "RETRY_PAUSES_S", (0.0,))
    newest = folder.checkpoints_dir / "000000040"
    before = {path.name: path.read_bytes() for path in newest.iterdir()}
    with failing_reads(newest, errno.EIO, fails=lambda _: True):
        session = Runner(CONFIG, folder)
    abandon_runner(session)
    assert session._resume_info is not None
    assert session._resume_info.checkpoint_dir.name == "000000020"
    (aside,) = checkpoint.list_unreadable(folder.checkpoints_dir)
    assert aside.name == "000000040.unreadable"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
    assert "000000040" not in [path.name for path in checkpoint.list_checkpoints(folder.checkpoints_dir)]
    run(CONFIG, folder)
    assert [path.name for path in checkpoint.list_checkpoints(folder.checkpoints_dir)] == [
        "000000060",
        "000000040",
        "000000020",
    ]


@HOLDS
@pytest.mark.quality("D3")
def test_those_that_are_set_aside_do_not_become_more_and_more(tmp_path: Path) -> None:
    for frames in range(10):
        folder = tmp_path / checkpoint.format_checkpoint_name(frames)
        folder.mkdir()
        (folder / checkpoint.VALUES_FILE).write_text("{")
        checkpoint.move_checkpoint_aside(folder)
    assert checkpoint.list_checkpoints(tmp_path) == []
    checkpoint.prune_checkpoints(tmp_path, 3)
    assert [path.name for path in checkpoint.list_unreadable(tmp_path)] == [
        f"{checkpoint.format_checkpoint_name(frames)}.unreadable" for frames in (9, 8, 7)
    ]


@HOLDS
@pytest.mark.quality("D3")
def test_a_folder_of_checkpoints_that_cannot_be_listed_does_not_look_empty(
    folder: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one would begin the run anew, and cut its records off."""
    before = folder.metrics_file.read_bytes()
    real = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path == folder.checkpoints_dir:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    monkeypatch.setattr(Path, "glob", lambda path, _: iter([]) if path == folder.checkpoints_dir else real(path))
    with pytest.raises(PermissionError, match="checkpoints"):
        Runner(CONFIG, folder)
    assert folder.metrics_file.read_bytes() == before
