import json
from pathlib import Path
from typing import Any

from manyview.cli.following import Lines


def line(kind: str, **more: Any) -> str:
    return json.dumps({"kind": kind, **more}) + "\n"


def kinds(lines: list[bytes]) -> list[str]:
    return [json.loads(one)["kind"] for one in lines]


def test_only_whole_and_new_lines_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(line("begin"))
    lines = Lines(file)
    assert lines.new() == []
    with file.open("a") as more:
        more.write(line("train") + '{"kind": "epi')
    assert kinds(lines.new()) == ["train"]
    with file.open("a") as more:
        more.write('sode"}\n')
    assert kinds(lines.new()) == ["episode"]


def test_a_run_that_goes_on_from_a_checkpoint_is_followed_from_there(tmp_path: Path) -> None:
    """It cuts off what came after the checkpoint: the file may then be shorter or longer than what was read."""
    for further in (0, 1, 200):
        file = tmp_path / f"{further}.jsonl"
        file.write_text(line("begin"))
        lines = Lines(file)
        with file.open("a") as more:
            more.write(line("train") + line("episode", text="x" * 100) + line("end"))
        assert kinds(lines.new()) == ["train", "episode", "end"]
        file.write_text(line("begin") + line("train") + line("resume") + line("train") * further)
        assert kinds(lines.new()) == ["resume"] + ["train"] * further
        assert lines.new() == []


def test_a_run_that_goes_on_is_followed_also_if_nothing_was_read_before(tmp_path: Path) -> None:
    """The command that goes on begins to look at a whole file, whose last lines are then cut off."""
    for further in (0, 1, 200):
        file = tmp_path / f"{further}.jsonl"
        file.write_text(line("begin") + line("train") + line("episode", text="x" * 100) + line("end"))
        lines = Lines(file)
        file.write_text(line("begin") + line("train") + line("resume") + line("train") * further)
        assert kinds(lines.new()) == ["resume"] + ["train"] * further
        assert lines.new() == []
