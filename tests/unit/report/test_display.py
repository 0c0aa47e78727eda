"""Displays of a run in training, with foreign text in its records."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from manyview.report.display import LiveDisplay, PlainDisplay
from manyview.training import RunDir, load_preset

FOREIGN_TEXT = pytest.mark.attack("names in a foreign run move no cursor, forge no row and are no formula in a plot")
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e"
COUNTERS = {"frames": 10, "steps": 5, "updates": 1}
RECORDS: list[dict[str, Any]] = [
    {"kind": "start", "seconds": 0.0},
    {"kind": "warning", "seconds": 1.0, "text": f"[bold]{ESCAPES}\nfinished"},
    {
        "kind": "train",
        "seconds": 60.0,
        "beta": 0.1,
        f"share/[red]{ESCAPES}\n": 0.5,
        "health": f"a view{ESCAPES} is silent\nb",
    },
    {"kind": "end", "seconds": 61.0, "state": "failed", "reason": f"{ESCAPES}\nfinished"},
]


@FOREIGN_TEXT
@pytest.mark.quality("X6")
def test_foreign_text_adds_no_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_preset("minute", task="toy/identity_continuous", method="drqv2+mem", seed=1)
    display = PlainDisplay(config, RunDir(tmp_path / f"run{ESCAPES}\n"))
    for record in RECORDS:
        display.record({**COUNTERS, **record})
    lines = capsys.readouterr().out.split("\n")[:-1]
    assert len(lines) == len(RECORDS) + 1  # a train record has lines for losses and health
    assert all(line.isprintable() for line in lines)


@FOREIGN_TEXT
@pytest.mark.quality("X6")
def test_the_panel_shows_foreign_text_without_control_characters(tmp_path: Path) -> None:
    config = load_preset("minute", task="toy/identity_continuous", method="drqv2+mem", seed=1)
    console = Console(file=StringIO(), force_terminal=False, width=200)
    display = LiveDisplay(config, RunDir(tmp_path / f"run{ESCAPES}"), console)
    for record in RECORDS:
        display._state.update({**COUNTERS, **record})
    with console.capture() as captured:
        console.print(display._render_panel())
    text = captured.get()
    assert all(line.isprintable() for line in text.split("\n"))
    assert "[bold]" in text
    assert "[red]" in text


def test_a_resumed_run_shows_its_last_return_and_earlier_curve(tmp_path: Path) -> None:
    run_dir, config = (
        RunDir(tmp_path / "run"),
        load_preset("minute", task="toy/identity_continuous", method="sac+mem", seed=1),
    )
    run_dir.path.mkdir()
    run_dir.write_config(config)
    evaluations = [{**COUNTERS, "kind": "evaluation", "seconds": 1.0, "return": value} for value in (1.0, 4.0, 2.5)]
    lines = (json.dumps({**record, "frames": 10 * (i + 1)}) for i, record in enumerate(evaluations))
    run_dir.metrics_file.write_text("".join(f"{line}\n" for line in lines))
    console = Console(width=80, force_terminal=False)
    display = LiveDisplay(config, run_dir, console)
    with console.capture() as captured:
        display.record({**COUNTERS, "kind": "resume", "seconds": 2.0, "resume_mode": "strict"})
        console.print(display._render_panel())
        display.close()
    assert "return        2.5  ▁█▅" in captured.get()
