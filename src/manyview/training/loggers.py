"""Loggers of a run's records: JSON lines, the primary one, and a collection; `trackers` has those of services."""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from manyview.utils.atomic_io import fsync_directory
from manyview.utils.files import retry_transient
from manyview.utils.text import sanitize_text

BLOCK_BYTES = 2**20
RecordKind = Literal["start", "resume", "train", "episode", "evaluation", "warning", "end"]


class Logger(Protocol):
    """Receiver of records: a file, a display or a service."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Take one record: its kind, counters, seconds and values."""

    def close(self) -> None:
        """Write what is pending and release files and threads."""


@runtime_checkable
class ShowsActivity(Protocol):
    """Logger that shows what a run does between two records."""

    def show_activity(self, text: str) -> None:
        """Show `text` until the next record."""


class JsonLinesLogger:
    """Append one JSON line per record and write it at once, so that a kill loses none.

    A full disk does not end a run: lines wait in memory, and the file never ends with a partial line.

    Args:
        path: File to append to.
        keep_bytes: Number of bytes to keep; later bytes are cut off, since a resumed run writes these records again.
        sha256: Expected checksum of the kept bytes. If it differs, nothing is cut off.

    """

    def __init__(self, path: Path, *, keep_bytes: int | None = None, sha256: str | None = None) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        self._unsynced_directory: Path | None = path.parent
        """Directory to sync at the first flush, so that the file name is on the disk; then None."""
        current_bytes = os.fstat(self._file).st_size
        self._size = current_bytes if keep_bytes is None else min(keep_bytes, current_bytes)
        self._pending, self._digest = b"", hashlib.sha256()
        self._lock = Lock()  # checkpoints flush in another thread than the one that records
        self.damage: str | None = None
        """Text that says why the kept bytes are not those of the checkpoint; None if they are."""
        try:
            last = self._hash(0, self._size)
            if keep_bytes is not None and current_bytes < keep_bytes:
                self.damage = f"{path.name} was cut off: expected at least {keep_bytes:,} bytes, got {current_bytes:,}"
            elif sha256 not in (None, self.sha256):
                self.damage = f"{path.name} was changed: its first {self._size:,} bytes do not match their checksum"
                last = self._hash(self._size, current_bytes) or last
                self._size = current_bytes
        except OSError as error:  # training continues without the earlier records
            self.damage = f"{path.name} cannot be read: {error.strerror}"
            last, self._size = b"", current_bytes
        os.ftruncate(self._file, self._size)
        if last not in (b"", b"\n"):
            self._append(b"\n")  # otherwise the next record would continue a partial line

    def _hash(self, start: int, end: int) -> bytes:
        """Add the bytes from `start` to `end` to the checksum and return the last one."""
        block = b""
        for offset in range(start, end, BLOCK_BYTES):
            size = min(BLOCK_BYTES, end - offset)
            block = retry_transient(lambda offset=offset, size=size: os.pread(self._file, size, offset))  # type: ignore[misc]
            self._digest.update(block)
        return block[-1:]

    @property
    def size(self) -> int:
        """Size of all records so far in bytes."""
        with self._lock:
            return self._size + len(self._pending)

    @property
    def sha256(self) -> str:
        """SHA-256 of all records so far."""
        with self._lock:
            return self._digest.hexdigest()

    def record(self, record: Mapping[str, Any]) -> None:
        """Append a record; non-finite numbers become null."""
        self._append((json.dumps(replace_non_finite(record), ensure_ascii=False) + "\n").encode())

    def _append(self, line: bytes) -> None:
        with self._lock, suppress(OSError):
            self._pending += line
            self._digest.update(line)
            self._write()

    def flush(self) -> None:
        """Write all records and sync them to the disk; `OSError` if it is full."""
        with self._lock:
            self._write()
        os.fsync(self._file)
        if self._unsynced_directory is not None:
            fsync_directory(self._unsynced_directory)
            self._unsynced_directory = None

    def _write(self) -> None:
        try:
            written = 0
            while written < len(self._pending):
                written += os.pwrite(self._file, self._pending[written:], self._size + written)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size, self._pending = self._size + written, b""

    def close(self) -> None:
        with self._lock, suppress(OSError):
            self._write()
        os.close(self._file)


class LoggerCollection:
    """Pass records to all loggers and close them at the end.

    Only errors of the primary logger propagate. A secondary logger that fails is closed and disabled with a warning.
    """

    def __init__(self, primary: Logger, *secondary: Logger) -> None:
        self._primary, self._secondary = primary, list(secondary)

    def record(self, record: Mapping[str, Any]) -> None:
        self._primary.record(record)
        for logger in tuple(self._secondary):
            if logger not in self._secondary:  # the warning about another one has disabled it
                continue
            try:
                logger.record(record)
            except Exception as error:
                self._secondary.remove(logger)
                self._close(logger)
                text = f"{type(logger).__name__} is disabled after an error: {sanitize_text(repr(error))}"
                self.record({**_select_times(record), "kind": "warning", "text": text})

    def show_activity(self, text: str) -> None:
        """Show `text` on the loggers that can."""
        for logger in self._secondary:
            if isinstance(logger, ShowsActivity):
                with suppress(Exception):
                    logger.show_activity(text)

    def close(self) -> None:
        for logger in self._secondary:
            self._close(logger)
        self._primary.close()

    def _close(self, logger: Logger) -> None:
        with suppress(Exception):
            logger.close()


def _select_times(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("frames", "steps", "updates", "seconds") if name in record}


def iter_scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record by name, without flags."""
    for name, value in record.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def replace_non_finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by None."""
    if isinstance(value, Mapping):
        return {name: replace_non_finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_floats(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Return scalar tensors as floats, copied from their device in one transfer."""
    names = list(metrics)
    return dict(zip(names, torch.stack([metrics[name].float() for name in names]).tolist(), strict=True))
