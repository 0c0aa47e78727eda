"""The records of a run that another process writes, shown as they appear."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from manyview.train.records import Listener

LOOK_EVERY_S = 0.5


@contextmanager
def shown(records: Path, listener: Listener) -> Iterator[None]:
    """While it lasts, and all of what was written by its end."""
    over, lines = Event(), Lines(records)

    def follow() -> None:
        last = False
        while not last:
            last = over.wait(LOOK_EVERY_S)
            for line in lines.new():
                listener.record(json.loads(line))

    thread = Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        listener.close()


class Lines:
    """Of a file that grows, and that a run which goes on from a checkpoint cuts off and writes anew from there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        whole = path.read_bytes() if path.exists() else b""
        self._read = whole.rfind(b"\n") + 1
        """Bytes of whole lines that were there before, or are read."""
        self._last = (whole[: self._read].splitlines(keepends=True) or [b""])[-1]
        """By which it is seen whether what was read is still there."""

    def new(self) -> list[bytes]:
        """The whole lines that have come since."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(max(0, self._read - len(self._last)))
            if file.read(len(self._last)) != self._last:
                self._read = _begin_of_resumed(self._path.read_bytes())
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")
        found = whole[0] + whole[1]
        self._read += len(found)
        lines = found.splitlines(keepends=True)
        self._last = lines[-1] if lines else self._last
        return lines


def _begin_of_resumed(whole: bytes) -> int:
    """Where the last record stands with which a run says that it goes on."""
    return whole.rfind(b"\n", 0, max(0, whole.rfind(b'"kind": "resume"'))) + 1
