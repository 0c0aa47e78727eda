"""Heartbeats of the learners of a run, through files in a directory that all machines share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from threading import Event, Thread

HEARTBEAT_INTERVAL_S = 1.0
PREFIX = "rank-"
"""Start of the file names, followed by the rank."""


@contextmanager
def send_heartbeats(directory: Path, rank: int) -> Iterator[None]:
    """Write a changing line to the file of `rank` every second, from a thread; a suspended process stops writing."""
    stopped, file = Event(), directory / f"{PREFIX}{rank}"

    def write_heartbeats() -> None:
        count = 0
        while True:
            with suppress(OSError):  # a full disk must not end a run
                file.write_text(f"pid {os.getpid()} on {gethostname()}, beat {count}")
            count += 1
            if stopped.wait(HEARTBEAT_INTERVAL_S):
                return

    thread = Thread(target=write_heartbeats, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        file.unlink(missing_ok=True)


@dataclass
class Heartbeat:
    """Last line of a rank, and the time since it changed."""

    line: str = ""
    silent_s: float = 0.0

    @property
    def process(self) -> str:
        """Process id and host."""
        return self.line.partition(",")[0]


class HeartbeatReader:
    """Reader of the heartbeats of all ranks; call `poll` at regular intervals."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.heartbeats: dict[int, Heartbeat] = {}
        """Last heartbeat by rank."""

    def poll(self, elapsed_s: float) -> None:
        """Read the files, `elapsed_s` after the last poll.

        Intervals are summed instead of reading a clock: after a suspension of this process, the others must not appear
        silent.
        """
        lines: dict[int, str] = {}
        for file in self._directory.glob(f"{PREFIX}*"):
            with suppress(OSError, ValueError):  # removed in the meantime
                lines[int(file.name.removeprefix(PREFIX))] = file.read_text()
        self.heartbeats = {rank: self._update(rank, line, elapsed_s) for rank, line in sorted(lines.items())}

    def _update(self, rank: int, line: str, elapsed_s: float) -> Heartbeat:
        previous = self.heartbeats.get(rank)
        if previous is None or (line and line != previous.line):
            return Heartbeat(line)
        return Heartbeat(previous.line, previous.silent_s + elapsed_s)
