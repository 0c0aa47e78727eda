"""A killed trainer leaves no process, shared memory or unexpected file behind."""

import os
import signal
from pathlib import Path
from time import monotonic, sleep

import pytest

from benchmarks.kills import CASES
from benchmarks.launcher import ChildProcess, Launcher, Request
from benchmarks.run_comparison import find_leftovers
from manyview.training import RunDir

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
RUN_FILES = {"config.json", "manifest.json", "metrics.jsonl", "lock", "checkpoints", "replay", "videos"}

pytestmark = pytest.mark.xdist_group("processes")


def is_gone(group: int) -> bool:
    """Return whether the process group has no process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until_gone(group: int, *, timeout_s: float = 5) -> bool:
    """Wait for the end of a process group; return whether it ended in time."""
    deadline_s = monotonic() + timeout_s
    while not is_gone(group) and monotonic() < deadline_s:
        sleep(0.01)
    return is_gone(group)


def start_run(run_dir: RunDir, launcher: Launcher) -> ChildProcess:
    settings = ["--set", "evaluation.video=true", "logging.keep_replay=false"]
    command = [*CASES[0].command(run_dir.path), *settings]
    return launcher.start(Request(command, output=f"{run_dir.path}.said", watched_dirs=[]))


@pytest.mark.slow
@pytest.mark.attack("A trainer that is killed leaves no process, shared memory or file behind")
@pytest.mark.quality("L4")
@pytest.mark.parametrize("moment", ["training", "a video is written"])
def test_a_killed_trainer_leaves_nothing_behind(tmp_path: Path, launcher: Launcher, moment: str) -> None:
    pytest.importorskip("imageio_ffmpeg")
    run_dir, shared_memory = RunDir(tmp_path / "run"), set(SHARED_MEMORY.iterdir())
    child = start_run(run_dir, launcher)
    if moment == "training":
        child.wait_for(lambda: (run_dir.checkpoints_dir / "000000045").exists())
    else:
        child.wait_for(lambda: run_dir.videos_dir.exists() and any(run_dir.videos_dir.iterdir()))
    child.send(signal.SIGKILL)
    assert child.wait().was_killed
    assert wait_until_gone(child.pid)
    assert set(SHARED_MEMORY.iterdir()) <= shared_memory
    result = start_run(run_dir, launcher).wait()
    assert result.status == 0, result.output
    assert find_leftovers(run_dir) == []
    assert {path.name for path in run_dir.path.iterdir()} <= RUN_FILES
    assert not run_dir.replay_dir.exists() or not any(run_dir.replay_dir.iterdir())


@pytest.mark.quality("L4")
def test_the_next_command_removes_what_a_kill_at_the_end_left(tmp_path: Path, launcher: Launcher) -> None:
    """The kill comes between the end record and the removal of the replay segments."""
    run_dir = RunDir(tmp_path / "run")
    assert start_run(run_dir, launcher).wait().status == 0
    run_dir.replay_dir.mkdir(exist_ok=True)
    (run_dir.replay_dir / "000000000000-000000000015.segment").write_bytes(b"left")
    assert "has finished" in start_run(run_dir, launcher).wait().output
    assert not run_dir.replay_dir.exists()
