"""Reader of the records in a run's metrics.jsonl, from the start or from the end.

Lines that are not records are skipped: a killed run leaves a partial line, which is in the middle if the run resumed
later. The file is untrusted: it is read in blocks and up to size limits. Raises `OSError` if it is not a regular file.
"""

import os
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO

from manyview.utils.files import open_regular
from manyview.utils.json_io import parse_json

BLOCK_BYTES = 64 * 1024
MAX_RECORD_BYTES = 2**20
"""Limit of a record; usual ones have some hundred bytes, or 100 kB with the returns of thousands of episodes."""
MAX_FILE_BYTES = 2**28
"""Limit of the file, ten times its size with the longest preset."""
MAX_LINES = 2_000_000
MAX_TAIL_BYTES, MAX_TAIL_LINES = 2**24, 10_000
"""Limits of the search for a record from the end of the file, in bytes and lines."""


def read_records(path: Path, *, containing: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield all records in file order; lines without the bytes `containing` are not parsed."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise OSError(f"{path.name} is too large: expected at most {MAX_FILE_BYTES:,} bytes, got {size:,}")
        is_line_start = True
        for number in count():
            line = file.readline(MAX_RECORD_BYTES)
            if not line:
                return
            if number == MAX_LINES:
                raise OSError(f"{path.name} has too many lines: expected at most {MAX_LINES:,}")
            if is_line_start and containing in line:
                yield from _parse_record(line)
            is_line_start = line.endswith(b"\n")  # otherwise the rest of a line over the limit follows


def read_records_reversed(path: Path, *, containing: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield the newest records, last one first, reading only as much of the file as is consumed."""
    with open_regular(path) as file:
        lines = (line for line in _iter_lines_reversed(file) if containing in line)
        for line in islice(lines, MAX_TAIL_LINES):
            yield from _parse_record(line)


def _iter_lines_reversed(file: BinaryIO) -> Iterator[bytes]:
    start = file.seek(0, 2)
    limit = max(0, start - MAX_TAIL_BYTES)
    parts: list[bytes] = []
    """Parts of the line whose start is not read yet, last part first."""
    while start > limit:
        size = min(BLOCK_BYTES, start - limit)
        start = file.seek(start - size)
        first, *lines = file.read(size).split(b"\n")
        if lines:
            yield b"".join([lines.pop(), *reversed(parts)])
            parts = []
            yield from reversed(lines)
        parts.append(first)
    if start == 0:
        yield b"".join(reversed(parts))


def _parse_record(line: bytes) -> Iterator[dict[str, Any]]:
    if len(line) > MAX_RECORD_BYTES:
        return
    try:
        record = parse_json(line)
    except ValueError:  # invalid JSON or UTF-8
        return
    if isinstance(record.get("kind"), str):
        yield record
