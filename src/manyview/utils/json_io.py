"""Reading and writing of JSON.

Input may be untrusted: size, depth and duplicate names are checked.
"""

import json
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

from manyview.utils.files import read_bounded

MAX_JSON_BYTES = 4 * 2**20
"""Maximum file size. manyview's files have tens of kilobytes, and a megabyte for a replay of millions of steps."""
MAX_JSON_VALUES = 2**18
"""Maximum number of values; two or three bytes of a file can take up to a hundred bytes of memory."""
MAX_DEPTH = 256
"""Maximum nesting depth. manyview's files have less than ten; Python's recursion limit is about a thousand."""
MAX_NUMBER = 1e38
"""Maximum magnitude, about that of float32; sums and squares of such numbers are still finite in float64."""


def dump_json(value: Any) -> bytes:
    """Return indented JSON with a final newline, UTF-8 encoded."""
    return (json.dumps(value, indent=2) + "\n").encode()


def count_values(content: bytes) -> int:
    """Return an upper bound of the number of values; brackets and commas in strings count too."""
    return sum(map(content.count, (b"[", b"{", b",")))


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; `OSError` or `ValueError` if it is invalid."""
    return parse_json(read_bounded(path, max_bytes=MAX_JSON_BYTES))


def parse_json(content: bytes) -> dict[str, Any]:
    """Parse a JSON object; `ValueError` if it is invalid, too large or too deep."""
    if (count := count_values(content)) > MAX_JSON_VALUES:
        raise ValueError(f"too many JSON values: expected at most {MAX_JSON_VALUES:,}, got up to {count:,}")
    try:
        parsed = _DECODER.decode(content.decode(json.detect_encoding(content), "surrogatepass"))
    except RecursionError:
        raise _make_depth_error() from None
    if content.count(b"[") + content.count(b"{") >= MAX_DEPTH:  # rarely: the check takes longer than parsing
        check_depth(parsed)
    if not isinstance(parsed, dict):
        raise ValueError(f"invalid JSON: expected an object, got {type(parsed).__name__}")
    return parsed


def parse_value(text: str) -> Any:
    """Return the value of a setting on the command line: JSON, and the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def is_count(value: object, *, min_value: int = 0) -> TypeGuard[int]:
    """Return whether a value is an integer from `min_value` to 2^53 - 1; `True` is not."""
    return type(value) is int and min_value <= value < 2**53


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number of magnitude up to `MAX_NUMBER`.

    `True` and `NaN` are not.
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def check_depth(value: Any) -> None:
    """Raise `ValueError` for values nested deeper than `MAX_DEPTH`.

    Recursive functions could not process them.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        groups = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = list(chain.from_iterable(groups))
        if not level:
            return
    raise _make_depth_error()


def _make_depth_error() -> ValueError:
    return ValueError(f"JSON is nested too deeply: expected at most {MAX_DEPTH} levels")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("invalid JSON: a name occurs twice in an object")
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_reject_duplicates)
"""Shared decoder; `json.loads` would create one for every line of a file."""
