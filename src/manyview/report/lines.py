"""The records of a run's metrics.jsonl, from the begin or from the end.

A line that is no record is passed over: a kill leaves half of one, also in the middle if the run went on later.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK_BYTES = 64 * 1024


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Every record, in the order of writing."""
    with path.open("rb") as file:
        for line in file:
            yield from _record(line)


def newest_records(path: Path) -> Iterator[dict[str, Any]]:
    """Every record, the last one first; of the file no more is read than is asked for."""
    with path.open("rb") as file:
        begin = file.seek(0, 2)
        pieces: list[bytes] = []
        """Of the line whose begin has not been read yet, the last piece first."""
        while begin > 0:
            size = min(BLOCK_BYTES, begin)
            begin = file.seek(begin - size)
            first, *whole = file.read(size).split(b"\n")
            if whole:
                yield from _record(b"".join([whole.pop(), *reversed(pieces)]))
                pieces = []
                for line in reversed(whole):
                    yield from _record(line)
            pieces.append(first)
        yield from _record(b"".join(reversed(pieces)))


def _record(line: bytes) -> Iterator[dict[str, Any]]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or not even UTF-8
        return
    if isinstance(record, dict) and isinstance(record.get("kind"), str):
        yield record
