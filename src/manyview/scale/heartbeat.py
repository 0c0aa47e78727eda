"""Heartbeats of the processes of a run, through files that all its machines see."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from threading import Event, Thread

BEAT_S = 1.0
PREFIX = "rank-"


@contextmanager
def beating(folder: Path, rank: int) -> Iterator[None]:
    """Write a line that changes every second, from a thread; a stopped process falls silent."""
    ended, file = Event(), folder / f"{PREFIX}{rank}"

    def beat() -> None:
        count = 0
        while True:
            with suppress(OSError):  # a full disk must not end a run
                file.write_text(f"pid {os.getpid()} on {gethostname()}, beat {count}")
            count += 1
            if ended.wait(BEAT_S):
                return

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        file.unlink(missing_ok=True)


@dataclass
class Pulse:
    """What was last heard of a rank, and for how long nothing since."""

    line: str = ""
    silent_s: float = 0.0

    @property
    def who(self) -> str:
        return self.line.partition(",")[0]


class Heartbeats:
    """Watches the files of all ranks; call `look` at regular intervals."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pulses: dict[int, Pulse] = {}

    def look(self, elapsed_s: float) -> None:
        """Note which lines have changed in the `elapsed_s` since the last look.

        Intervals are added up instead of reading a clock: a command that was itself suspended must not find all others
        silent.
        """
        lines: dict[int, str] = {}
        for file in self._folder.glob(f"{PREFIX}*"):
            with suppress(OSError, ValueError):  # gone in the meantime
                lines[int(file.name.removeprefix(PREFIX))] = file.read_text()
        self.pulses = {rank: self._pulse(rank, line, elapsed_s) for rank, line in sorted(lines.items())}

    def _pulse(self, rank: int, line: str, elapsed_s: float) -> Pulse:
        before = self.pulses.get(rank)
        if before is None or (line and line != before.line):
            return Pulse(line)
        return Pulse(before.line, before.silent_s + elapsed_s)
