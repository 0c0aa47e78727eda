"""A crash at every single file operation of a run that is resumed, goes on, and is saved."""

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
KILLED_AT, SAVED_AT = 45, 40


@dataclass(frozen=True)
class Begun:
    """A run that was killed once, and what it does after that."""

    whole: RunDir
    folder: Path
    operations: list[Operation]

    def fresh_copy(self, folder: Path) -> RunDir:
        copytree(self.folder, folder)
        return RunDir(folder)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    folder = tmp_path_factory.mktemp("crashes")
    whole, killed = RunDir(folder / "whole"), RunDir(folder / "killed")
    run(CONFIG, whole)
    session = Runner(CONFIG, killed)
    advance_to(session, KILLED_AT)
    abandon_runner(session)
    operations: list[Operation] = []
    copy = Begun(whole, killed.path, operations).fresh_copy(folder / "copy")
    with intercept_operations([copy.path], lambda operation: operations.append(operation)):
        run(CONFIG, copy)
    return Begun(whole, killed.path, operations)


def crashed(folder: RunDir, number: int, *, torn: bool) -> None:
    """Resume the run and let it die of its file operation of this number."""
    numbers = count()
    dies: Callable[[Operation], bool] = lambda _: next(numbers) == number  # noqa: E731
    with simulate_crash(folder.path, dies, torn=torn), pytest.raises(SimulatedCrash):
        die_in(Runner(CONFIG, folder))


def die_in(session: Runner) -> None:
    try:
        session.run()
    finally:
        abandon_runner(session)


@pytest.mark.attack("A crash at every file operation of a resume and a save leaves a checkpoint to resume from")
@pytest.mark.quality("D2")
@pytest.mark.long
def test_after_a_crash_at_any_file_operation_there_is_a_checkpoint_to_go_on_from(begun: Begun, tmp_path: Path) -> None:
    names = {operation.name for operation in begun.operations}
    assert names >= {"create", "open", "write", "pwrite", "fsync", "rename", "mkdir", "unlink", "rmdir"}
    wrong = {}
    for number, operation in enumerate(begun.operations):
        for torn in {False, operation.name in WRITES}:
            folder = begun.fresh_copy(tmp_path / f"{number}{torn}")
            crashed(folder, number, torn=torn)
            at = f"{number} {operation.name} {operation.path.name}{' torn' if torn else ''}"
            newest, _ = checkpoint.load_newest_checkpoint(folder.checkpoints_dir)
            if int(newest.name) < SAVED_AT:
                wrong[at] = [f"goes on from {newest.name}"]
            if not folder.is_finished:
                run(CONFIG, folder)
            if found := compare_runs(begun.whole, folder):
                wrong[at] = found
    assert wrong == {}


@pytest.mark.quality("D2")
def test_an_older_checkpoint_that_becomes_unreadable_does_not_end_a_run(begun: Begun, tmp_path: Path) -> None:
    folder = begun.fresh_copy(tmp_path / "copy")
    session = Runner(CONFIG, folder)
    (folder.checkpoints_dir / "000000020" / "manifest.json").write_bytes(b"\0")
    try:
        assert session.run()
    finally:
        session.close()
    assert [path.name for path in checkpoint.list_checkpoints(folder.checkpoints_dir)] == ["000000060", "000000040"]


def test_a_crash_that_is_not_survived_would_be_found(begun: Begun, tmp_path: Path) -> None:
    """The test above could not fail otherwise: here the checkpoint is gone that it went on from."""
    folder = begun.fresh_copy(tmp_path / "copy")
    (folder.checkpoints_dir / checkpoint.format_checkpoint_name(SAVED_AT) / "SHA256SUMS").unlink()
    with suppress(SimulatedCrash):
        crashed(folder, len(begun.operations) // 2, torn=False)
    newest, _ = checkpoint.load_newest_checkpoint(folder.checkpoints_dir)
    assert int(newest.name) < SAVED_AT
