"""JSON of ours, and JSON from outside: one object, small enough to be read in a moment, names only once."""

import json
from pathlib import Path
from typing import Any

from manyview.data.durable import read_regular

MOST_BYTES = 4 * 2**20
"""Ours have tens of kilobytes, and a megabyte where a replay of millions of steps is named."""
MOST_VALUES = 2**18
"""Each takes up to a hundred bytes of memory, for two or three in the file."""


def as_json(value: Any) -> bytes:
    """For people to read, too."""
    return (json.dumps(value, indent=2) + "\n").encode()


def value_count(content: bytes) -> int:
    """How many values JSON holds, or a few more: brackets and commas in texts count too."""
    return sum(map(content.count, (b"[", b"{", b",")))


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file; OSError or ValueError say what is wrong."""
    return parsed(read_regular(path, most_bytes=MOST_BYTES))


def parsed(content: bytes) -> dict[str, Any]:
    """The object; ValueError says what is wrong."""
    if value_count(content) > MOST_VALUES:
        raise ValueError(f"it holds more than {MOST_VALUES:,} values")
    try:
        found = json.loads(content, object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def is_count(value: Any, *, least: int = 0) -> bool:
    """Whether it is a whole number that something can have been counted to."""
    return type(value) is int and least <= value < 2**53


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found
