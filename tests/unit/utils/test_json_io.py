"""Foreign JSON: bounds of depth and size, and the check of numbers."""

import json
from pathlib import Path

import pytest

from manyview.utils.files import open_regular, read_bounded
from manyview.utils.json_io import MAX_DEPTH, check_depth, is_number, parse_json


@pytest.mark.parametrize("value", [0, -1, 1.5, 1e38, 2**100])
def test_finite_values_within_the_bound_are_numbers(value: object) -> None:
    assert is_number(value)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-1e400", "1e39", "9" * 400, "true", "null", '"1"', "[1]"])
def test_other_values_are_not_numbers(text: str) -> None:
    assert not is_number(json.loads(text))


def make_nested_json(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def test_objects_nested_too_deeply_are_refused() -> None:
    assert parse_json(make_nested_json(MAX_DEPTH - 1))
    for depth in (MAX_DEPTH, 900, 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(make_nested_json(depth))


def test_lists_count_as_objects_in_the_depth() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    with pytest.raises(ValueError, match="nested too deeply"):
        check_depth(value)


def test_a_file_above_the_bound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, max_bytes=5) == b"12345"
    with pytest.raises(OSError, match="file is too large: expected at most 4 bytes, got 5"):
        read_bounded(path, max_bytes=4)


def test_opening_a_folder_is_refused_and_leaves_no_open_file(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        with pytest.raises(OSError, match="expected a file"):
            open_regular(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
