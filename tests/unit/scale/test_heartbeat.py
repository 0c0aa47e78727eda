"""Heartbeats of learners: a hanging learner is named and does not delay a stop."""

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

HANGING_LEARNER = (
    "a learner among several that hangs is named by its rank, and a stop requested meanwhile leaves within seconds"
)
pytestmark = [pytest.mark.attack(HANGING_LEARNER), pytest.mark.quality("L8")]
SENDER_CODE = """
import sys
from pathlib import Path
from manyview.scale import heartbeat
heartbeat.HEARTBEAT_INTERVAL_S = 0.02
with heartbeat.send_heartbeats(Path(sys.argv[1]), 1):
    sys.stdin.read()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Process of rank 1, which sends heartbeats until its stdin is closed."""
    sender = subprocess.Popen([sys.executable, "-c", SENDER_CODE, str(tmp_path)], stdin=subprocess.PIPE)
    deadline_s = monotonic() + 60
    while not (tmp_path / "rank-1").exists():
        assert monotonic() < deadline_s
        sleep(0.01)
    yield sender
    sender.kill()
    sender.wait(timeout=30)
    assert sender.stdin
    sender.stdin.close()


def wait_for(is_reached: Callable[[], object]) -> None:
    """Wait until the condition is true, for at most 30 s."""
    deadline_s = monotonic() + 30
    while not is_reached():
        assert monotonic() < deadline_s
        sleep(0.005)


def test_a_stopped_process_is_named_and_one_with_heartbeats_is_not(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    warnings, file = list[str](), tmp_path / "rank-1"
    monitor = LearnerMonitor(tmp_path, warnings.append)

    def poll_between_heartbeats(*, stopping: bool) -> None:
        """Poll as after a long time, so that only new heartbeats prevent a warning."""
        for _ in range(3):
            before = file.read_text()
            wait_for(lambda: file.read_text() not in ("", before))  # noqa: B023
            monitor.poll(SILENT_S, stopping=stopping)

    poll_between_heartbeats(stopping=False)
    poll_between_heartbeats(stopping=True)
    assert warnings == []
    os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: "T (stopped)" in Path(f"/proc/{process.pid}/status").read_text())
    monitor.poll(POLL_INTERVAL_S, stopping=False)  # reads the last heartbeat
    for _ in range(3):
        monitor.poll(SILENT_S, stopping=False)
    (warning,) = warnings  # only one
    assert warning.startswith(f"the learner of rank 1 (pid {process.pid} on ")
    with pytest.raises(LearnersFailedError, match=r"rank 1 .* no checkpoint .* Repeat the command to resume"):
        monitor.poll(POLL_INTERVAL_S, stopping=True)
    os.kill(process.pid, signal.SIGCONT)
    poll_between_heartbeats(stopping=True)
    assert process.stdin
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    assert list(tmp_path.iterdir()) == []  # an ended process does not count as silent
    monitor.poll(SILENT_S, stopping=True)


def test_a_failure_file_raises_an_error_only_during_a_stop(tmp_path: Path) -> None:
    monitor = LearnerMonitor(tmp_path, lambda _: None)
    (tmp_path / FAILURE_FILE).write_text("replay shard 1 does not answer")
    monitor.poll(POLL_INTERVAL_S, stopping=False)
    with pytest.raises(LearnersFailedError, match="replay shard 1 does not answer"):
        monitor.poll(POLL_INTERVAL_S, stopping=True)


def test_an_unfinished_or_foreign_file_is_no_heartbeat(tmp_path: Path) -> None:
    reader = HeartbeatReader(tmp_path)
    (tmp_path / "rank-1").write_text("pid 7 on here, beat 0")
    (tmp_path / "rank-none").touch()
    reader.poll(1.0)
    (tmp_path / "rank-1").write_text("")  # as during a write
    reader.poll(1.0)
    assert reader.heartbeats == {1: Heartbeat("pid 7 on here, beat 0", 1.0)}
    assert reader.heartbeats[1].process == "pid 7 on here"
