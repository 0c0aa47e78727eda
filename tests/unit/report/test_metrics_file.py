"""Records of a metrics file, read forwards and backwards."""

import json
from pathlib import Path

import pytest

from manyview.report import metrics_file
from manyview.report.metrics_file import read_records, read_records_reversed


@pytest.mark.parametrize("block_bytes", [1, 2, 7, 64, 100_000])
def test_reading_backwards_gives_the_same_records_in_reverse(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_file, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "metrics.jsonl"
    records = [{"kind": "train", "β": number, "text": "x" * (number * 5)} for number in range(9)]
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    assert list(read_records(path)) == records
    assert list(read_records_reversed(path)) == records[::-1]


def test_a_partial_line_is_skipped_at_the_end_and_before_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "a"}\n{"kind": "b", "ret{"kind": "c"}\n{"kind": "d"}\n{"kind": "e", "fra')
    assert [record["kind"] for record in read_records(path)] == ["a", "d"]
    assert [record["kind"] for record in read_records_reversed(path)] == ["d", "a"]


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.touch()
    assert not [*read_records(path), *read_records_reversed(path)]


@pytest.mark.attack(
    "a run folder of deep, huge or infinite JSON, links, pipes, gigabytes or loops is a row that says why; the other "
    "runs are listed and drawn"
)
@pytest.mark.quality("X5")
def test_a_line_that_is_too_long_is_skipped_from_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setattr(metrics_file, "MAX_RECORD_BYTES", 40)
    for text in ("x" * 1000, '{"kind": "long", "a": "' + "x" * 1000 + '"}'):
        path.write_text(f'{{"kind": "a"}}\n{text}\n{{"kind": "b"}}\n')
        assert [record["kind"] for record in read_records(path)] == ["a", "b"]
        assert [record["kind"] for record in read_records_reversed(path)] == ["b", "a"]


def test_reading_backwards_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setattr(metrics_file, "MAX_TAIL_BYTES", 30)
    path.write_text('{"kind": "a"}\n' * 10)
    assert len(list(read_records_reversed(path))) == 2


def test_the_number_of_parsed_lines_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "a"}\n' + "{}\n" * 10)
    assert len(list(read_records_reversed(path))) == len(list(read_records(path))) == 1
    monkeypatch.setattr(metrics_file, "MAX_TAIL_LINES", 10)
    monkeypatch.setattr(metrics_file, "MAX_LINES", 10)
    assert list(read_records_reversed(path)) == []
    with pytest.raises(OSError, match=r"metrics\.jsonl has too many lines: expected at most 10"):
        list(read_records(path))


def test_only_lines_that_contain_the_given_bytes_are_parsed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train"}\n{"kind": "evaluation"}\n{"kind": "end"}\n')
    assert [record["kind"] for record in read_records(path, containing=b"evaluation")] == ["evaluation"]
    assert [record["kind"] for record in read_records_reversed(path, containing=b"evaluation")] == ["evaluation"]


@pytest.mark.attack(
    "a run folder of deep, huge or infinite JSON, links, pipes, gigabytes or loops is a row that says why; the other "
    "runs are listed and drawn"
)
@pytest.mark.quality("X5")
def test_reading_backwards_reads_only_the_end_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse: takes no disk space, but an hour to read
        file.seek(0, 2)
        file.write(b'\n{"kind": "train"}\n{"kind": "end"}\n')
    records = read_records_reversed(path)
    assert [next(records)["kind"], next(records)["kind"]] == ["end", "train"]
