"""Streaming of the records of a run that other processes write."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import BinaryIO

from manyview.report.metrics_file import MAX_TAIL_BYTES
from manyview.training.loggers import Logger
from manyview.utils.files import open_regular
from manyview.utils.json_io import parse_json

POLL_INTERVAL_S = 0.5


@contextmanager
def stream_records(metrics_file: Path, logger: Logger) -> Iterator[None]:
    """Pass new records of the file to `logger` within the context, up to the last one written before its end."""
    stopped, reader = Event(), TailReader(metrics_file)

    def follow() -> None:
        last = False
        while not last:
            last = stopped.wait(POLL_INTERVAL_S)
            for line in reader.read_new_lines():
                # A display error must not end the run, and the file may hold lines that no run wrote.
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
    """Reader of the new lines of a growing file, which a resumed run truncates and continues from its checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset, self._last_line = 0, b""
        """Bytes of complete lines that existed at the start or were read, and the last of these lines.

        A changed last line means that the file was truncated.
        """
        with suppress(OSError), open_regular(path) as file:
            start, tail = _read_tail(file)
            complete = tail[: tail.rfind(b"\n") + 1]
            self._offset, self._last_line = start + len(complete), (complete.splitlines(keepends=True) or [b""])[-1]

    def read_new_lines(self) -> list[bytes]:
        """Return the complete lines written since the last call."""
        with suppress(OSError), open_regular(self._path) as file:
            file.seek(max(0, self._offset - len(self._last_line)))
            if file.read(len(self._last_line)) != self._last_line:
                start, tail = _read_tail(file)
                self._offset = start + _find_resume_start(tail)
            file.seek(self._offset)
            new = file.read(MAX_TAIL_BYTES)
            is_too_long = len(new) == MAX_TAIL_BYTES and b"\n" not in new  # such a line is skipped in parts
            complete = new if is_too_long else new[: new.rfind(b"\n") + 1]
            self._offset += len(complete)
            lines = complete.splitlines(keepends=True)
            self._last_line = lines[-1] if lines else self._last_line
            return lines
        return []


def _read_tail(file: BinaryIO) -> tuple[int, bytes]:
    """Return the offset of the last part of a file, and that part."""
    start = max(0, file.seek(0, 2) - MAX_TAIL_BYTES)
    file.seek(start)
    return start, file.read(MAX_TAIL_BYTES)


def _find_resume_start(tail: bytes) -> int:
    """Return the offset of the last resume record in `tail`."""
    return tail.rfind(b"\n", 0, max(0, tail.rfind(b'"kind": "resume"'))) + 1
