"""A disk that is full, at any write of a running session: training goes on, and so does saving once there is room."""

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
from tests.unit.training.test_runner import poisoning

CONFIG = make_quick_config()
NEED_ROOM = ("create", "mkdir", "rename", "fsync", *WRITES)
FULL_DISK = pytest.mark.attack("A full disk costs a run nothing but a checkpoint, and is told")
FULL_FOR = 5
"""Operations that fail before there is room again."""


def no_room() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def full(folder: RunDir, when: Callable[[int], bool]) -> Iterator[list[Operation]]:
    """A disk that is full at these operations, counted from 0: of a write, half is done."""
    met: list[Operation] = []

    def meet(operation: Operation) -> Callable[[], None] | None:
        if operation.name not in NEED_ROOM:
            return None
        met.append(operation)
        if not when(len(met) - 1):
            return None
        if operation.name not in WRITES:
            no_room()
        return no_room

    with intercept_operations([folder.path], meet):
        yield met


def played(folder: RunDir, when: Callable[[int], bool]) -> bool:
    """Whether a run got to its end with such a disk."""
    session = Runner(CONFIG, folder)
    try:
        with full(folder, when):
            return session.run()
    except SaveFailedError:
        return False
    finally:
        session.close()


def same_end(one: RunDir, other: RunDir) -> list[str]:
    """Differences in what two runs have become; their segments may be cut elsewhere, and warnings are told."""
    newest = [checkpoint.load_newest_checkpoint(run.checkpoints_dir)[0] for run in (one, other)]
    trees = [load_comparable_state(folder)["tree"] for folder in newest]
    replays = read_replay(one, newest[0]), read_replay(other, newest[1])
    return compare_trees(*trees) + compare_trees(*replays) + compare_trees(told(one), told(other))


def told(folder: RunDir) -> list[object]:
    return [
        {name: value for name, value in record.items() if name != "seconds"}
        for record in read_records(folder.metrics_file)
        if record["kind"] not in ("start", "resume", "warning")
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    folder = RunDir(tmp_path_factory.mktemp("disk") / "whole")
    run(CONFIG, folder)
    return folder


@FULL_DISK
@pytest.mark.quality("D5")
@pytest.mark.long
def test_a_disk_that_is_full_at_any_write_costs_nothing_but_a_checkpoint(whole: RunDir, tmp_path: Path) -> None:
    plain = RunDir(tmp_path / "plain")
    session = Runner(CONFIG, plain)
    with full(plain, lambda _: False) as operations:
        session.run()
    session.close()
    wrong, warned = {}, 0
    second = next(number for number, operation in enumerate(operations) if operation.path.match("000000020.*"))
    for first in range(second, len(operations), 2):  # the first save is as the second
        folder = RunDir(tmp_path / str(first))
        finished = played(folder, lambda number, first=first: first <= number < first + FULL_FOR)  # type: ignore[misc]
        warned += bool(read_warnings(folder))
        if not (finished or folder.is_finished):  # its last checkpoint could not be written: the same command goes on
            run(CONFIG, folder)
        if found := same_end(whole, folder):
            wrong[f"{first} {operations[first].name} {operations[first].path.name}"] = found
    assert wrong == {}
    assert warned > (len(operations) - second) / 4


@FULL_DISK
@pytest.mark.quality("D5")
def test_a_full_disk_leaves_the_last_checkpoint_alone_and_is_told(whole: RunDir, tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    with open_runner(CONFIG, folder, frames=25) as session:
        with full(folder, lambda _: True):
            while session.trainer.counters.frames < 45:
                session.advance()
            session.writer.wait()
        assert [path.name for path in checkpoint.list_checkpoints(folder.checkpoints_dir)] == ["000000020", "000000000"]
        assert checkpoint.load_newest_checkpoint(folder.checkpoints_dir)[0].name == "000000020"
        session.run()
    assert any("No space left on device" in text for text in read_warnings(folder))
    assert [path.name for path in checkpoint.list_checkpoints(folder.checkpoints_dir)] == [
        "000000060",
        "000000020",
        "000000000",
    ]
    assert same_end(whole, folder) == []


@FULL_DISK
@pytest.mark.quality("D5")
def test_a_run_whose_last_checkpoint_cannot_be_written_has_not_finished(whole: RunDir, tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    refused = pytest.raises(SaveFailedError, match=r"000000060 .*No space left .* same")
    with open_runner(CONFIG, folder, frames=59) as session, full(folder, lambda _: True), refused:
        session.run()
    assert not folder.is_finished
    assert run(CONFIG, folder)
    assert same_end(whole, folder) == []


@pytest.mark.quality("D5")
def test_bad_updates_lead_back_to_a_checkpoint_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one could not be written."""
    poisoning(monkeypatch, range(50, 53))
    config, folder = make_quick_config(schedule={"seed_frames": 48}), RunDir(tmp_path / "run")
    with open_runner(config, folder, frames=39) as session:
        with full(folder, lambda _: True):
            session.advance()
            session.writer.wait()
        assert session.run()
    assert [text for text in read_warnings(folder) if text.endswith("; back to the agent of 000000020")]


@pytest.mark.slow
@FULL_DISK
@pytest.mark.quality("D5")
@pytest.mark.xdist_group("processes")
def test_a_process_whose_files_may_not_grow_trains_on(tmp_path: Path, launcher: Launcher) -> None:
    """A real refusal of the system, in place of the injected ones."""
    folder = RunDir(tmp_path / "run")
    command = ["train", CONFIG.task, "--config", str(tmp_path / "config.json"), "--out", str(folder.path)]
    (tmp_path / "config.json").write_text(json.dumps(to_plain(CONFIG)))
    said = str(tmp_path / "said")
    limited = Request(command, output=said, watched_dirs=[], patches="tests.support.patches:limit_file_size")
    ended = launcher.start(limited).wait()
    assert ended.status == 1, ended.output
    assert "File too large" in ended.output
    assert "then resume with the same command" in ended.output
    assert "60 frames  return" in ended.output, "it trained to the end"
    assert launcher.start(Request(command, output=said, watched_dirs=[])).wait().status == 0
    assert folder.is_finished


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
        case, folder = CASES[0], RunDir(disk / "run")
        whole = run_reference(case, tmp_path / "whole", launcher).run_dir
        request = Request(case.command(folder.path), output=str(tmp_path / "said"), watched_dirs=[])
        ended = launcher.start(request).wait()
        assert ended.status == 1, ended.output
        assert "No space left on device" in ended.output
        subprocess.run(["/bin/mount", "-o", "remount,size=64m", str(disk)], check=True, timeout=30)
        ended = launcher.start(request).wait()
        assert ended.status == 0, ended.output
        newest = [checkpoint.list_checkpoints(run.checkpoints_dir)[0] for run in (whole, folder)]
        assert compare_trees(*(load_comparable_state(path) for path in newest)) == []
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(disk)], check=True, timeout=30)
