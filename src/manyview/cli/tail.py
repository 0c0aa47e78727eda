"""The records of a run that another process writes, shown as they appear."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import BinaryIO

from manyview.report.metrics_file import MAX_TAIL_BYTES
from manyview.train.loggers import Logger
from manyview.utils.files import open_regular
from manyview.utils.json_io import parse_json

POLL_INTERVAL_S = 0.5


@contextmanager
def stream_records(metrics_file: Path, logger: Logger) -> Iterator[None]:
    """While it lasts, and all of what was written by its end."""
    stopped, reader = Event(), TailReader(metrics_file)

    def follow() -> None:
        last = False
        while not last:
            last = stopped.wait(POLL_INTERVAL_S)
            for line in reader.read_new_lines():
                # A run is worth more than whoever watches it, and the file may hold what no run of ours wrote.
                with suppress(Exception):
                    logger.record(parse_json(line))

    thread = Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        logger.close()


class TailReader:
    """Of a file that grows, and that a run which goes on from a checkpoint cuts off and writes anew from there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset, self._last_line = 0, b""
        """Bytes of whole lines that were there before or are read, and the last of these lines, by which it is seen
        whether what was read is still there.
        """
        with suppress(OSError), open_regular(path) as file:
            begin, tail = _read_tail(file)
            whole = tail[: tail.rfind(b"\n") + 1]
            self._offset, self._last_line = begin + len(whole), (whole.splitlines(keepends=True) or [b""])[-1]

    def read_new_lines(self) -> list[bytes]:
        """The whole lines that have come since."""
        with suppress(OSError), open_regular(self._path) as file:
            file.seek(max(0, self._offset - len(self._last_line)))
            if file.read(len(self._last_line)) != self._last_line:
                begin, tail = _read_tail(file)
                self._offset = begin + _find_resume_start(tail)
            file.seek(self._offset)
            come = file.read(MAX_TAIL_BYTES)
            is_endless = len(come) == MAX_TAIL_BYTES and b"\n" not in come  # a line that is passed over in parts
            whole = come if is_endless else come[: come.rfind(b"\n") + 1]
            self._offset += len(whole)
            lines = whole.splitlines(keepends=True)
            self._last_line = lines[-1] if lines else self._last_line
            return lines
        return []


def _read_tail(file: BinaryIO) -> tuple[int, bytes]:
    """Return where the last part of a file begins, and that part."""
    begin = max(0, file.seek(0, 2) - MAX_TAIL_BYTES)
    file.seek(begin)
    return begin, file.read(MAX_TAIL_BYTES)


def _find_resume_start(whole: bytes) -> int:
    """Where the last record stands with which a run says that it goes on."""
    return whole.rfind(b"\n", 0, max(0, whole.rfind(b'"kind": "resume"'))) + 1
