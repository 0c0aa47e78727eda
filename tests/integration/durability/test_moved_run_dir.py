"""Run directories that are moved, copied or on a read-only disk."""

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
MOVED_RUN_DIR = pytest.mark.attack(
    "A run whose folder is moved saves nothing in its old place, says so, and goes on in the new"
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return the directory of an uninterrupted run."""
    run_dir = RunDir(tmp_path_factory.mktemp("moved") / "whole")
    run(CONFIG, run_dir)
    return run_dir


@MOVED_RUN_DIR
@pytest.mark.quality("D2")
@pytest.mark.parametrize("is_recreated", [False, True], ids=["gone", "made anew"])
def test_a_moved_run_fails_and_resumes_from_its_new_path(reference: RunDir, tmp_path: Path, is_recreated: bool) -> None:
    run_dir, moved_run = RunDir(tmp_path / "run"), RunDir(tmp_path / "moved")
    with open_runner(CONFIG, run_dir, frames=25) as runner:
        run_dir.path.rename(moved_run.path)
        if is_recreated:
            run_dir.path.mkdir()
            (run_dir.path / "lock").touch()
        with pytest.raises(RunMovedError, match=r"moved: expected .*run, got .*Resume with the same command"):
            runner.run()
    assert sorted(path.name for path in run_dir.path.glob("*")) == (["lock"] if is_recreated else [])
    assert list(read_records(moved_run.metrics_file))[-1]["state"] == "failed"
    assert run(CONFIG, moved_run)
    assert compare_runs(reference, moved_run) == []


@MOVED_RUN_DIR
@pytest.mark.quality("D2")
@pytest.mark.xdist_group("processes")
def test_the_command_ends_with_status_1_and_one_line(tmp_path: Path, launcher: Launcher) -> None:
    run_dir = RunDir(tmp_path / "run")
    patches = "tests.support.patches:hold_until_stop"
    child = launcher.start(Request(CASES[0].command(run_dir.path), str(tmp_path / "said"), [], patches=patches))
    child.wait_for(lambda: (run_dir.checkpoints_dir / "000000090").exists())
    run_dir.path.rename(tmp_path / "moved")
    child.send(signal.SIGTERM)
    result = child.wait()
    assert result.status == 1, result.output
    assert "run directory was moved" in result.output
    assert "Traceback" not in result.output
    assert not run_dir.path.exists()


@pytest.mark.attack("A copy of a run's folder goes on by itself, also while the original is trained")
@pytest.mark.quality("D2")
def test_a_copied_run_resumes_like_the_original(reference: RunDir, tmp_path: Path) -> None:
    run_dir, copy = RunDir(tmp_path / "run"), RunDir(tmp_path / "copy")
    with open_runner(CONFIG, run_dir, frames=45) as runner:
        shutil.copytree(run_dir.path, copy.path)
        assert run(CONFIG, copy)
        assert runner.run()
    assert compare_runs(reference, copy) == []
    assert compare_runs(reference, run_dir) == []


@pytest.mark.attack("A read-only disk is one readable line, and nothing is lost")
@pytest.mark.quality("D5")
def test_a_read_only_disk_is_a_readable_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = RunDir(tmp_path / "run")
    runner = Runner(CONFIG, run_dir)
    advance_to(runner, 25)
    abandon_runner(runner)
    before = {path: path.read_bytes() for path in run_dir.path.rglob("*") if path.is_file()}

    def handle(operation: Operation) -> None:
        if operation.name != "open":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(operation.path))

    command = ["train", CONFIG.task, "--config", str(run_dir.config_file), "--out", str(run_dir.path)]
    with intercept_operations([run_dir.path], handle):
        assert main(command) == 2
    assert "Read-only file system" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run_dir.path.rglob("*") if path.is_file()} == before
