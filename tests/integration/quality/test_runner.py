"""`python -m quality` as a person runs it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quality.__main__ import Outcome
from quality.rows import ROWS, at_least, at_most

ROOT = Path(__file__).parents[3]


def quality(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quality", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def test_a_row_prints_one_line_with_its_figure_and_bar() -> None:
    result = quality("S6")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.fullmatch(r"S6 ok \d\.?\d*e-\d+ \(bar 0\.0001\)\n", result.stdout)


def test_list_names_every_row_and_runs_nothing() -> None:
    lines = quality("--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(ROWS)


def test_an_unknown_row_is_refused() -> None:
    result = quality("S99")
    assert result.returncode == 2
    assert "no such row: S99" in result.stderr


def test_bars_know_which_side_is_worse() -> None:
    assert at_most(2).is_met_by(2)
    assert not at_most(2).is_met_by(2.1)
    assert at_least(2).is_met_by(2)
    assert not at_least(2).is_met_by(float("nan"))
    assert at_most(2).choose_worse(1, 3) == 3
    assert at_least(2).choose_worse(1, 3) == 1
    assert at_most(2).choose_worse(1, float("nan")) != at_most(2).choose_worse(1, float("nan"))


def test_the_bar_of_a_guard_is_farther_by_a_share() -> None:
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
    marked = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        marked |= set(re.findall(r'mark\.quality\("(\w+)"\)', file.read_text()))
    assert set(ROWS) <= marked


@pytest.fixture
def falling_short(tmp_path: Path) -> Path:
    """A copy of the runner with a test that cannot reach its bar."""
    for name in ("quality", "benchmarks", "conftest.py", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "tests").mkdir()
    test = "import pytest\n@pytest.mark.quality('P3')\ndef test_it(figure):\n    figure(3.4)\n"
    (tmp_path / "tests" / "test_it.py").write_text(test)
    return tmp_path


@pytest.mark.parametrize("as_json", [False, True])
def test_a_row_that_falls_short_says_so_and_fails(falling_short: Path, *, as_json: bool) -> None:
    code = "import pathlib, sys, quality.__main__ as runner; sys.exit(runner.main(pathlib.Path.cwd()))"
    command = [sys.executable, "-c", code, "P3", *["--json"] * as_json]
    result = subprocess.run(command, cwd=falling_short, capture_output=True, text=True, timeout=300)
    if as_json:
        found = json.loads(result.stdout)
        assert (found["ok"], found["figures"]) == (False, {"": 3.4})
    else:
        assert result.stdout == "P3 SHORT 3.4 (bar 2.95)\n"
    assert result.returncode == 1


@pytest.mark.parametrize(("slack", "status"), [("0.1", 1), ("0.2", 0)])
def test_pytest_lets_a_figure_miss_its_bar_by_the_slack(falling_short: Path, slack: str, status: int) -> None:
    """3.4, where the bar is 2.95."""
    command = [sys.executable, "-m", "pytest", "tests", "--slack", slack]
    assert subprocess.run(command, cwd=falling_short, capture_output=True, timeout=300).returncode == status
