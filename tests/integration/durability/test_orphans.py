"""A trainer that is killed leaves nothing behind that somebody would have to clean up."""

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
OF_A_RUN = {"config.json", "manifest.json", "metrics.jsonl", "lock", "checkpoints", "replay", "videos"}

pytestmark = pytest.mark.xdist_group("processes")


def is_gone(group: int) -> bool:
    """Whether no process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def is_soon_gone(group: int, *, within_s: float = 5) -> bool:
    end_s = monotonic() + within_s
    while not is_gone(group) and monotonic() < end_s:
        sleep(0.01)
    return is_gone(group)


def started(folder: RunDir, launcher: Launcher) -> ChildProcess:
    film = ["--set", "evaluation.video=true", "logging.keep_replay=false"]
    command = [*CASES[0].command(folder.path), *film]
    return launcher.start(Request(command, output=f"{folder.path}.said", watched_dirs=[]))


@pytest.mark.slow
@pytest.mark.attack("A trainer that is killed leaves no process, shared memory or file behind")
@pytest.mark.quality("L4")
@pytest.mark.parametrize("moment", ["training", "a video is written"])
def test_a_killed_trainer_leaves_nothing_behind(tmp_path: Path, launcher: Launcher, moment: str) -> None:
    pytest.importorskip("imageio_ffmpeg")
    folder, shared = RunDir(tmp_path / "run"), set(SHARED_MEMORY.iterdir())
    running = started(folder, launcher)
    if moment == "training":
        running.wait_for(lambda: (folder.checkpoints_dir / "000000045").exists())
    else:
        running.wait_for(lambda: folder.videos_dir.exists() and any(folder.videos_dir.iterdir()))
    running.send(signal.SIGKILL)
    assert running.wait().was_killed
    assert is_soon_gone(running.pid)
    assert set(SHARED_MEMORY.iterdir()) <= shared
    ended = started(folder, launcher).wait()
    assert ended.status == 0, ended.output
    assert find_leftovers(folder) == []
    assert {path.name for path in folder.path.iterdir()} <= OF_A_RUN
    assert not folder.replay_dir.exists() or not any(folder.replay_dir.iterdir())


@pytest.mark.quality("L4")
def test_what_a_kill_at_the_very_end_left_goes_with_the_next_command(tmp_path: Path, launcher: Launcher) -> None:
    """Between the mark that a run has finished, and the removal of its replay."""
    folder = RunDir(tmp_path / "run")
    assert started(folder, launcher).wait().status == 0
    folder.replay_dir.mkdir(exist_ok=True)
    (folder.replay_dir / "000000000000-000000000015.segment").write_bytes(b"left")
    assert "has finished" in started(folder, launcher).wait().output
    assert not folder.replay_dir.exists()
