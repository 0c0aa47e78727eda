"""`python -m quality`, run as a command."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quality.__main__ import Outcome
from quality.rows import ROWS, at_least, at_most

ROOT = Path(__file__).parents[3]


def run_quality(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m quality` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "quality", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def test_a_row_prints_one_line_with_its_figure_and_bar() -> None:
    result = run_quality("S6")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.fullmatch(r"S6 ok \d\.?\d*e-\d+ \(bar 0\.0001\)\n", result.stdout)


def test_list_names_every_row_and_runs_nothing() -> None:
    lines = run_quality("--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(ROWS)


def test_an_unknown_row_is_refused() -> None:
    result = run_quality("S99")
    assert result.returncode == 2
    assert "no such row: S99" in result.stderr


def test_bars_compare_values_in_their_direction() -> None:
    assert at_most(2).is_met_by(2)
    assert not at_most(2).is_met_by(2.1)
    assert at_least(2).is_met_by(2)
    assert not at_least(2).is_met_by(float("nan"))
    assert at_most(2).choose_worse(1, 3) == 3
    assert at_least(2).choose_worse(1, 3) == 1
    assert at_most(2).choose_worse(1, float("nan")) != at_most(2).choose_worse(1, float("nan"))


def test_relax_moves_a_bar_by_a_fraction() -> None:
    assert at_most(2).relax(0.5).is_met_by(3)
    assert not at_most(2).relax(0.5).is_met_by(3.1)
    assert at_least(3).relax(0.5).is_met_by(2)
    assert not at_least(3).relax(0.5).is_met_by(1.9)
    assert at_most(2).relax(0) == at_most(2)
    assert not at_least(3, relaxes=False).relax(0.5).is_met_by(2.9)


def test_a_bar_that_nothing_measured_is_not_met() -> None:
    outcome = Outcome(ROWS["S7"])
    outcome.add(passed=True, figures=[("1-d and 2-d", 0.01)], reason="")
    assert not outcome.ok
    outcome.add(passed=True, figures=[("3-d", 0.01)], reason="")
    assert outcome.ok


def test_every_row_has_a_test_behind_it() -> None:
    marked_rows = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        marked_rows |= set(re.findall(r'mark\.quality\("(\w+)"\)', file.read_text()))
    assert set(ROWS) <= marked_rows


@pytest.fixture
def failing_project(tmp_path: Path) -> Path:
    """Return a project with the quality runner and a test that misses its bar."""
    for name in ("quality", "benchmarks", "conftest.py", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "tests").mkdir()
    test = "import pytest\n@pytest.mark.quality('P3')\ndef test_it(figure):\n    figure(3.4)\n"
    (tmp_path / "tests" / "test_it.py").write_text(test)
    return tmp_path


@pytest.mark.parametrize("as_json", [False, True])
def test_a_row_that_misses_its_bar_is_reported_and_fails(failing_project: Path, *, as_json: bool) -> None:
    code = "import pathlib, sys, quality.__main__ as runner; sys.exit(runner.main(pathlib.Path.cwd()))"
    command = [sys.executable, "-c", code, "P3", *["--json"] * as_json]
    result = subprocess.run(command, cwd=failing_project, capture_output=True, text=True, timeout=300)
    if as_json:
        report = json.loads(result.stdout)
        assert (report["ok"], report["figures"]) == (False, {"": 3.4})
    else:
        assert result.stdout == "P3 SHORT 3.4 (bar 2.95)\n"
    assert result.returncode == 1


@pytest.mark.parametrize(("slack", "status"), [("0.1", 1), ("0.2", 0)])
def test_pytest_lets_a_figure_miss_its_bar_by_the_slack(failing_project: Path, slack: str, status: int) -> None:
    """The figure is 3.4 and the bar 2.95."""
    command = [sys.executable, "-m", "pytest", "tests", "--slack", slack]
    assert subprocess.run(command, cwd=failing_project, capture_output=True, timeout=300).returncode == status
