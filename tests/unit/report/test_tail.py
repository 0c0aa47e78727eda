import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from manyview.report import tail
from manyview.report.tail import TailReader, stream_records


def line(kind: str, **more: Any) -> str:
    return json.dumps({"kind": kind, **more}) + "\n"


def kinds(lines: list[bytes]) -> list[str]:
    return [json.loads(one)["kind"] for one in lines]


def test_only_whole_and_new_lines_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(line("begin"))
    lines = TailReader(file)
    assert lines.read_new_lines() == []
    with file.open("a") as more:
        more.write(line("train") + '{"kind": "epi')
    assert kinds(lines.read_new_lines()) == ["train"]
    with file.open("a") as more:
        more.write('sode"}\n')
    assert kinds(lines.read_new_lines()) == ["episode"]


def test_a_run_that_goes_on_from_a_checkpoint_is_followed_from_there(tmp_path: Path) -> None:
    """It cuts off what came after the checkpoint: the file may then be shorter or longer than what was read."""
    for further in (0, 1, 200):
        file = tmp_path / f"{further}.jsonl"
        file.write_text(line("begin"))
        lines = TailReader(file)
        with file.open("a") as more:
            more.write(line("train") + line("episode", text="x" * 100) + line("end"))
        assert kinds(lines.read_new_lines()) == ["train", "episode", "end"]
        file.write_text(line("begin") + line("train") + line("resume") + line("train") * further)
        assert kinds(lines.read_new_lines()) == ["resume"] + ["train"] * further
        assert lines.read_new_lines() == []


def test_a_run_that_goes_on_is_followed_also_if_nothing_was_read_before(tmp_path: Path) -> None:
    """The command that goes on begins to look at a whole file, whose last lines are then cut off."""
    for further in (0, 1, 200):
        file = tmp_path / f"{further}.jsonl"
        file.write_text(line("begin") + line("train") + line("episode", text="x" * 100) + line("end"))
        lines = TailReader(file)
        file.write_text(line("begin") + line("train") + line("resume") + line("train") * further)
        assert kinds(lines.read_new_lines()) == ["resume"] + ["train"] * further
        assert lines.read_new_lines() == []


HOSTILE = pytest.mark.attack(
    "records of another process that are no records, endless or no file do not end the display"
)


class Kinds:
    """A listener that takes ours only."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def record(self, record: Mapping[str, Any]) -> None:
        self.seen.append(record["kind"])

    def close(self) -> None:
        pass


@HOSTILE
@pytest.mark.quality("X5")
def test_lines_that_are_no_records_are_passed_over(tmp_path: Path) -> None:
    file, listener = tmp_path / "metrics.jsonl", Kinds()
    with stream_records(file, listener):
        file.write_text(line("start") + "{}\n\x00\n[1]\n" + "[" * 100_000 + "\n" + line("end"))
    assert listener.seen == ["start", "end"]


@HOSTILE
@pytest.mark.quality("X5")
def test_a_line_without_end_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_TAIL_BYTES", 100)
    file = tmp_path / "metrics.jsonl"
    file.write_text("x" * 1000)
    lines = TailReader(file)
    with file.open("a") as more:
        more.write("\n" + line("train"))
    come = [one for _ in range(20) for one in lines.read_new_lines()]
    assert json.loads(come[-1])["kind"] == "train"
    assert max(map(len, come)) <= 100


@HOSTILE
@pytest.mark.quality("X5")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert TailReader(tmp_path / "metrics.jsonl").read_new_lines() == []
