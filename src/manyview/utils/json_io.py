"""JSON of ours, and JSON from outside: one object, small enough to be read in a moment, names only once."""

import json
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

from manyview.utils.files import read_bounded

MAX_JSON_BYTES = 4 * 2**20
"""Ours have tens of kilobytes, and a megabyte where a replay of millions of steps is named."""
MAX_JSON_VALUES = 2**18
"""Each takes up to a hundred bytes of memory, for two or three in the file."""
MAX_DEPTH = 256
"""Of values inside values; ours have less than ten. Python gives up a recursion at about a thousand."""
MAX_NUMBER = 1e38
"""About the largest float32. Nothing that is measured is larger, and sums and squares of such still are finite."""


def dump_json(value: Any) -> bytes:
    """For people to read, too."""
    return (json.dumps(value, indent=2) + "\n").encode()


def count_values(content: bytes) -> int:
    """How many values JSON holds, or a few more: brackets and commas in texts count too."""
    return sum(map(content.count, (b"[", b"{", b",")))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; OSError or ValueError say what is wrong."""
    return parse_json(read_bounded(path, max_bytes=MAX_JSON_BYTES))


def parse_json(content: bytes) -> dict[str, Any]:
    """The object; ValueError says what is wrong."""
    if count_values(content) > MAX_JSON_VALUES:
        raise ValueError(f"it holds more than {MAX_JSON_VALUES:,} values")
    try:
        parsed = _DECODER.decode(content.decode(json.detect_encoding(content), "surrogatepass"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if content.count(b"[") + content.count(b"{") >= MAX_DEPTH:  # seldom: it would take longer than to parse
        check_depth(parsed)
    if not isinstance(parsed, dict):
        raise ValueError("it is no JSON object")
    return parsed


def is_count(value: object, *, min_value: int = 0) -> TypeGuard[int]:
    """Whether it is a whole number that something can have been counted to."""
    return type(value) is int and min_value <= value < 2**53


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number that can be computed with and drawn; `True` and `NaN` are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def check_depth(value: Any) -> None:
    """Raise `ValueError` for values so deep inside each other that no recursive function can follow."""
    level = [value]
    for _ in range(MAX_DEPTH):
        groups = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = list(chain.from_iterable(groups))
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name occurs twice")
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_reject_duplicates)
"""As `json.loads` would make one for every line of a file."""
