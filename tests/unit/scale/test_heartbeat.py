"""A learner that hangs falls silent, is named, and keeps no stop waiting."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from manyview.scale.heartbeat import Heartbeat, HeartbeatReader
from manyview.scale.learners import FAILURE_FILE, POLL_INTERVAL_S, SILENT_S, LearnerMonitor, LearnersFailedError

HUNG = "a learner among several that hangs is named by its rank, and a stop requested meanwhile leaves within seconds"
pytestmark = [pytest.mark.attack(HUNG), pytest.mark.quality("L8")]
BEAT = """
import sys
from pathlib import Path
from manyview.scale import heartbeat
heartbeat.HEARTBEAT_INTERVAL_S = 0.02
with heartbeat.send_heartbeats(Path(sys.argv[1]), 1):
    sys.stdin.read()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Rank 1, which beats until it is told to end."""
    started = subprocess.Popen([sys.executable, "-c", BEAT, str(tmp_path)], stdin=subprocess.PIPE)
    deadline_s = monotonic() + 60
    while not (tmp_path / "rank-1").exists():
        assert monotonic() < deadline_s
        sleep(0.01)
    yield started
    started.kill()
    started.wait(timeout=30)
    assert started.stdin
    started.stdin.close()


def wait_for(reached: Callable[[], object]) -> None:
    deadline_s = monotonic() + 30
    while not reached():
        assert monotonic() < deadline_s
        sleep(0.005)


def test_a_stopped_process_is_named_and_one_that_beats_is_not(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    said, file = list[str](), tmp_path / "rank-1"
    watch = LearnerMonitor(tmp_path, said.append)

    def look_between_beats(*, stopping: bool) -> None:
        """Far apart, so that only a beat keeps the watch quiet."""
        for _ in range(3):
            before = file.read_text()
            wait_for(lambda: file.read_text() not in ("", before))  # noqa: B023
            watch.poll(SILENT_S, stopping=stopping)

    look_between_beats(stopping=False)
    look_between_beats(stopping=True)
    assert said == []
    os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: "T (stopped)" in Path(f"/proc/{process.pid}/status").read_text())
    watch.poll(POLL_INTERVAL_S, stopping=False)  # the last beat of all
    for _ in range(3):
        watch.poll(SILENT_S, stopping=False)
    (warning,) = said  # once
    assert warning.startswith(f"the learner of rank 1 (pid {process.pid} on ")
    with pytest.raises(LearnersFailedError, match=r"rank 1 .* no checkpoint .* Repeat the command to resume"):
        watch.poll(POLL_INTERVAL_S, stopping=True)
    os.kill(process.pid, signal.SIGCONT)
    look_between_beats(stopping=True)
    assert process.stdin
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    assert list(tmp_path.iterdir()) == []  # one that has ended is not silent
    watch.poll(SILENT_S, stopping=True)


def test_what_a_rank_could_not_save_ends_the_wait_for_a_stop_and_only_that(tmp_path: Path) -> None:
    watch = LearnerMonitor(tmp_path, lambda _: None)
    (tmp_path / FAILURE_FILE).write_text("replay shard 1 does not answer")
    watch.poll(POLL_INTERVAL_S, stopping=False)
    with pytest.raises(LearnersFailedError, match="replay shard 1 does not answer"):
        watch.poll(POLL_INTERVAL_S, stopping=True)


def test_an_unfinished_or_foreign_file_is_no_beat(tmp_path: Path) -> None:
    beats = HeartbeatReader(tmp_path)
    (tmp_path / "rank-1").write_text("pid 7 on here, beat 0")
    (tmp_path / "rank-none").touch()
    beats.poll(1.0)
    (tmp_path / "rank-1").write_text("")  # in the midst of a write
    beats.poll(1.0)
    assert beats.heartbeats == {1: Heartbeat("pid 7 on here, beat 0", 1.0)}
    assert beats.heartbeats[1].process == "pid 7 on here"
