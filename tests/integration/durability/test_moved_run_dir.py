"""A run's folder that is moved, copied, held by another process or on a read-only disk."""

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest

from benchmarks.file_operations import Operation, intercept_operations
from benchmarks.kills import CASES
from benchmarks.launcher import Launcher, Request
from benchmarks.run_comparison import compare_runs
from manyview.cli.main import main
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, run
from manyview.training.run_dir import RunMovedError
from manyview.training.runner import Runner
from tests.support.runners import abandon_runner, advance_to, make_quick_config, open_runner

CONFIG = make_quick_config()
MOVED = pytest.mark.attack(
    "A run whose folder is moved saves nothing in its old place, says so, and goes on in the new"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    folder = RunDir(tmp_path_factory.mktemp("moved") / "whole")
    run(CONFIG, folder)
    return folder


@MOVED
@pytest.mark.quality("D2")
@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made anew"])
def test_a_moved_folder_ends_the_run_and_its_new_place_goes_on(whole: RunDir, tmp_path: Path, anew: bool) -> None:
    folder, moved = RunDir(tmp_path / "run"), RunDir(tmp_path / "moved")
    with open_runner(CONFIG, folder, frames=25) as session:
        folder.path.rename(moved.path)
        if anew:
            folder.path.mkdir()
            (folder.path / "lock").touch()
        with pytest.raises(RunMovedError, match=r"moved: expected .*run, got .*Resume with the same command"):
            session.run()
    assert sorted(path.name for path in folder.path.glob("*")) == (["lock"] if anew else [])
    assert list(read_records(moved.metrics_file))[-1]["state"] == "failed"
    assert run(CONFIG, moved)
    assert compare_runs(whole, moved) == []


@MOVED
@pytest.mark.quality("D2")
@pytest.mark.xdist_group("processes")
def test_the_command_ends_with_status_1_and_one_line(tmp_path: Path, launcher: Launcher) -> None:
    folder = RunDir(tmp_path / "run")
    patches = "tests.support.patches:hold_until_stop"
    running = launcher.start(Request(CASES[0].command(folder.path), str(tmp_path / "said"), [], patches=patches))
    running.wait_for(lambda: (folder.checkpoints_dir / "000000090").exists())
    folder.path.rename(tmp_path / "moved")
    running.send(signal.SIGTERM)
    ended = running.wait()
    assert ended.status == 1, ended.output
    assert "run directory was moved" in ended.output
    assert "Traceback" not in ended.output
    assert not folder.path.exists()


@pytest.mark.attack("A copy of a run's folder goes on by itself, also while the original is trained")
@pytest.mark.quality("D2")
def test_a_copied_folder_goes_on_as_the_original(whole: RunDir, tmp_path: Path) -> None:
    folder, copy = RunDir(tmp_path / "run"), RunDir(tmp_path / "copy")
    with open_runner(CONFIG, folder, frames=45) as session:
        shutil.copytree(folder.path, copy.path)
        assert run(CONFIG, copy)
        assert session.run()
    assert compare_runs(whole, copy) == []
    assert compare_runs(whole, folder) == []


@pytest.mark.attack("A read-only disk is one readable line, and nothing is lost")
@pytest.mark.quality("D5")
def test_a_read_only_disk_is_a_readable_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunDir(tmp_path / "run")
    session = Runner(CONFIG, folder)
    advance_to(session, 25)
    abandon_runner(session)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}

    def meet(operation: Operation) -> None:
        if operation.name != "open":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(operation.path))

    command = ["train", CONFIG.task, "--config", str(folder.config_file), "--out", str(folder.path)]
    with intercept_operations([folder.path], meet):
        assert main(command) == 2
    assert "Read-only file system" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before
