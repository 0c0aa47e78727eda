"""The records of a run that another process writes, shown as they appear."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import BinaryIO

from manyview.report.lines import MAX_TAIL_BYTES
from manyview.train.records import Listener
from manyview.utils.files import open_regular
from manyview.utils.json_io import parsed

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
                # A run is worth more than whoever watches it, and the file may hold what no run of ours wrote.
                with suppress(Exception):
                    listener.record(parsed(line))

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
        self._read, self._last = 0, b""
        """Bytes of whole lines that were there before or are read, and the last of these lines, by which it is seen
        whether what was read is still there.
        """
        with suppress(OSError), open_regular(path) as file:
            begin, tail = _tail(file)
            whole = tail[: tail.rfind(b"\n") + 1]
            self._read, self._last = begin + len(whole), (whole.splitlines(keepends=True) or [b""])[-1]

    def new(self) -> list[bytes]:
        """The whole lines that have come since."""
        with suppress(OSError), open_regular(self._path) as file:
            file.seek(max(0, self._read - len(self._last)))
            if file.read(len(self._last)) != self._last:
                begin, tail = _tail(file)
                self._read = begin + _begin_of_resumed(tail)
            file.seek(self._read)
            come = file.read(MAX_TAIL_BYTES)
            is_endless = len(come) == MAX_TAIL_BYTES and b"\n" not in come  # a line that is passed over in parts
            whole = come if is_endless else come[: come.rfind(b"\n") + 1]
            self._read += len(whole)
            lines = whole.splitlines(keepends=True)
            self._last = lines[-1] if lines else self._last
            return lines
        return []


def _tail(file: BinaryIO) -> tuple[int, bytes]:
    """Return where the last part of a file begins, and that part."""
    begin = max(0, file.seek(0, 2) - MAX_TAIL_BYTES)
    file.seek(begin)
    return begin, file.read(MAX_TAIL_BYTES)


def _begin_of_resumed(whole: bytes) -> int:
    """Where the last record stands with which a run says that it goes on."""
    return whole.rfind(b"\n", 0, max(0, whole.rfind(b'"kind": "resume"'))) + 1
