"""New lines of a metrics file that another process writes."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from manyview.report import tail
from manyview.report.tail import TailReader, stream_records


def format_line(kind: str, **fields: Any) -> str:
    """Return a line of the metrics file."""
    return json.dumps({"kind": kind, **fields}) + "\n"


def read_kinds(lines: list[bytes]) -> list[str]:
    """Return the kind of the record in each line."""
    return [json.loads(line)["kind"] for line in lines]


def test_only_complete_new_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(format_line("begin"))
    reader = TailReader(file)
    assert reader.read_new_lines() == []
    with file.open("a") as stream:
        stream.write(format_line("train") + '{"kind": "epi')
    assert read_kinds(reader.read_new_lines()) == ["train"]
    with file.open("a") as stream:
        stream.write('sode"}\n')
    assert read_kinds(reader.read_new_lines()) == ["episode"]


def test_a_resumed_run_is_followed_from_its_checkpoint(tmp_path: Path) -> None:
    """A resume truncates the file at its checkpoint: the new file is shorter or longer than what was read."""
    for num_records in (0, 1, 200):
        file = tmp_path / f"{num_records}.jsonl"
        file.write_text(format_line("begin"))
        reader = TailReader(file)
        with file.open("a") as stream:
            stream.write(format_line("train") + format_line("episode", text="x" * 100) + format_line("end"))
        assert read_kinds(reader.read_new_lines()) == ["train", "episode", "end"]
        file.write_text(
            format_line("begin") + format_line("train") + format_line("resume") + format_line("train") * num_records
        )
        assert read_kinds(reader.read_new_lines()) == ["resume"] + ["train"] * num_records
        assert reader.read_new_lines() == []


def test_a_resumed_run_is_followed_if_nothing_was_read_before(tmp_path: Path) -> None:
    """`manyview resume` opens the whole file, whose last lines are then truncated."""
    for num_records in (0, 1, 200):
        file = tmp_path / f"{num_records}.jsonl"
        file.write_text(
            format_line("begin") + format_line("train") + format_line("episode", text="x" * 100) + format_line("end")
        )
        reader = TailReader(file)
        file.write_text(
            format_line("begin") + format_line("train") + format_line("resume") + format_line("train") * num_records
        )
        assert read_kinds(reader.read_new_lines()) == ["resume"] + ["train"] * num_records
        assert reader.read_new_lines() == []


FOREIGN_RECORDS = pytest.mark.attack(
    "records of another process that are no records, endless or no file do not end the display"
)


class KindRecorder:
    """Listener that records the kind of every record."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def record(self, record: Mapping[str, Any]) -> None:
        self.kinds.append(record["kind"])

    def close(self) -> None:
        pass


@FOREIGN_RECORDS
@pytest.mark.quality("X5")
def test_lines_that_are_no_records_are_skipped(tmp_path: Path) -> None:
    file, listener = tmp_path / "metrics.jsonl", KindRecorder()
    with stream_records(file, listener):
        file.write_text(format_line("start") + "{}\n\x00\n[1]\n" + "[" * 100_000 + "\n" + format_line("end"))
    assert listener.kinds == ["start", "end"]


@FOREIGN_RECORDS
@pytest.mark.quality("X5")
def test_a_line_without_end_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_TAIL_BYTES", 100)
    file = tmp_path / "metrics.jsonl"
    file.write_text("x" * 1000)
    reader = TailReader(file)
    with file.open("a") as stream:
        stream.write("\n" + format_line("train"))
    new_lines = [line for _ in range(20) for line in reader.read_new_lines()]
    assert json.loads(new_lines[-1])["kind"] == "train"
    assert max(map(len, new_lines)) <= 100


@FOREIGN_RECORDS
@pytest.mark.quality("X5")
def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert TailReader(tmp_path / "metrics.jsonl").read_new_lines() == []
