"""The records of a run's metrics.jsonl, from the begin or from the end.

A line that is no record is passed over: a kill leaves half of one, also in the middle if the run went on later. The
file may be anybody's: it is read a block at a time and no further than a real one reaches. `OSError` if it is no file.
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
"""Ours have some hundred bytes, and a hundred kilobytes with the returns of thousands of episodes."""
MAX_FILE_BYTES = 2**28
"""Ten times those of the longest preset."""
MAX_LINES = 2_000_000
MAX_TAIL_BYTES, MAX_TAIL_LINES = 2**24, 10_000
"""How far back from the end of a file is looked for a record, and among how many lines."""


def read_records(path: Path, *, containing: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield every record in the order of writing; lines without the bytes `containing` are not even parsed."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise OSError(f"{path.name} has {size:,} bytes, at most {MAX_FILE_BYTES:,} are expected")
        is_begin = True
        for number in count():
            line = file.readline(MAX_RECORD_BYTES)
            if not line:
                return
            if number == MAX_LINES:
                raise OSError(f"{path.name} has more than {MAX_LINES:,} lines")
            if is_begin and containing in line:
                yield from _parse_record(line)
            is_begin = line.endswith(b"\n")  # otherwise what comes next is the rest of a line that is too long


def read_records_reversed(path: Path, *, containing: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield the newest records, the last one first; of the file no more is read than is asked for."""
    with open_regular(path) as file:
        lines = (line for line in _lines_from_the_end(file) if containing in line)
        for line in islice(lines, MAX_TAIL_LINES):
            yield from _parse_record(line)


def _lines_from_the_end(file: BinaryIO) -> Iterator[bytes]:
    begin = file.seek(0, 2)
    end = max(0, begin - MAX_TAIL_BYTES)
    pieces: list[bytes] = []
    """Of the line whose begin has not been read yet, the last piece first."""
    while begin > end:
        size = min(BLOCK_BYTES, begin - end)
        begin = file.seek(begin - size)
        first, *whole = file.read(size).split(b"\n")
        if whole:
            yield b"".join([whole.pop(), *reversed(pieces)])
            pieces = []
            yield from reversed(whole)
        pieces.append(first)
    if begin == 0:
        yield b"".join(reversed(pieces))


def _parse_record(line: bytes) -> Iterator[dict[str, Any]]:
    if len(line) > MAX_RECORD_BYTES:
        return
    try:
        record = parse_json(line)
    except ValueError:  # no JSON, or not even UTF-8
        return
    if isinstance(record.get("kind"), str):
        yield record
