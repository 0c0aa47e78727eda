"""`manyview runs`: the list of runs as a table, JSON and CSV."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from manyview.cli.main import main
from manyview.cli.runs import format_age, format_csv_cell
from manyview.report.runs import CONFIG_FILE
from tests.support.run_dirs import TASK, write_run_dir


def test_the_table_has_a_line_for_each_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run_dir(tmp_path / "a", [1.0, 812.34], seed=7)
    write_run_dir(tmp_path / "b", [1.0], method="sac+none", end="stopped")
    assert main(["runs", str(tmp_path)]) == 0
    headings, first, second = capsys.readouterr().out.splitlines()
    assert headings.split() == ["state", "task", "method", "seed", "frames", "return", "age", "path"]
    assert first.split() == [
        *("finished", TASK, "drqv2+mem", "7", "1%", "of", "100,000", "812.3"),
        *first.split()[8:10],  # the age
        str(tmp_path / "a"),
    ]
    assert second.split()[:3] == ["stopped", TASK, "sac+none"]


def test_json_has_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run_dir(tmp_path / "a", [1.0, 2.5], seed=7)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert run.pop("age_s") >= 0
    assert run == {
        "path": str(tmp_path / "a"),
        "state": "finished",
        "task": TASK,
        "method": "drqv2+mem",
        "seed": 7,
        "frames": 1000,
        "total_frames": 100_000,
        "last_return": 2.5,
        "reason": None,
    }


def test_csv_has_the_fields_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run_dir(tmp_path / "a", [1.0, 2.5], seed=7)
    (write_run_dir(tmp_path / "b, c", [1.0]) / CONFIG_FILE).write_text("{")
    assert main(["runs", str(tmp_path), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)
    assert main(["runs", str(tmp_path), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [list(row) for row in rows] == [list(run) for run in runs]
    for row, run in zip(rows, runs, strict=True):
        assert float(row.pop("age_s") or 0) == pytest.approx(run.pop("age_s") or 0, abs=60)
        assert row == {name: "" if value is None else str(value) for name, value in run.items()}


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, None),
        (-2.5, -2.5),
        ("=1+1", "'=1+1"),
        ("-x", "'-x"),
        ("@x", "'@x"),
        ("+x", "'+x"),
        ("a=b", "a=b"),
        ("a\n\x1b", "a  "),
    ],
)
def test_cells_are_no_formulas_and_have_no_control_characters(value: object, cell: object) -> None:
    assert format_csv_cell(value) == cell


def test_two_formats_at_once_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path), "--json", "--csv"]) == 2
    assert "expected --json or --csv, got both" in capsys.readouterr().err


def test_a_broken_run_is_a_line_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (write_run_dir(tmp_path / "[red]", [1.0]) / CONFIG_FILE).write_text("{")  # brackets are no markup of rich
    assert main(["runs", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "broken" in captured.out
    assert str(tmp_path / "[red]") in captured.out
    assert "config.json is not valid JSON" in captured.out


def test_a_folder_without_runs_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no runs below {tmp_path}\n"
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_missing_folder_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_runs_below_the_working_directory_are_listed_without_torch(tmp_path: Path) -> None:
    write_run_dir(tmp_path / "runs" / "a", [1.0])
    code = """
import sys
from manyview.cli.main import main
assert main(["runs"]) == 0
assert "torch" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].endswith(str(Path("runs/a")))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (3 * 86_400, "3 d")]
)
def test_ages_are_short(seconds: float, text: str) -> None:
    assert format_age(seconds) == text
