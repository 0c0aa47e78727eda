"""`manyview runs`, `plot`, `report` and `compare` show intact runs beside hostile ones."""

import csv
import io
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyview.report.page import MAX_PAGE_BYTES
from tests.support.hostile_runs import BROKEN_RUNS, LISTED_RUNS, MARKUP, make_hostile_runs
from tests.support.pages import check_page

BROKEN_RUN = pytest.mark.attack(
    "a run folder of deep, huge or infinite JSON, links, pipes, gigabytes or loops is a row that says why; the other "
    "runs are listed and drawn"
)
FORGED_NAMES = pytest.mark.attack("names in a foreign run move no cursor, forge no row and are no formula in a plot")
MEMORY_BYTES = 3 * 2**30


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def run_manyview(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command with little memory and time."""
    return subprocess.run(
        [sys.executable, "-m", "manyview", *map(str, arguments)],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=60,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=limit_memory,
    )


def is_printable(text: str) -> bool:
    """Return whether all lines of a text are printable."""
    return all(line.isprintable() for line in text.split("\n"))


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a directory with hostile and intact runs."""
    path = tmp_path_factory.mktemp("runs")
    make_hostile_runs(path)
    yield path
    subprocess.run(["/bin/rm", "-rf", str(path)], check=True, timeout=60)  # nested deeper than pytest can remove


@BROKEN_RUN
@FORGED_NAMES
@pytest.mark.quality("X5", "X6")
def test_hostile_runs_are_listed_beside_whole_ones(runs_dir: Path) -> None:
    result = run_manyview("runs", runs_dir)
    assert (result.returncode, result.stderr) == (0, "")
    assert is_printable(result.stdout)
    rows = [line for line in result.stdout.splitlines() if not line.startswith("    ")]
    assert len(rows) == 1 + len(BROKEN_RUNS) + len(LISTED_RUNS) + 4
    assert [row.split()[0] for row in rows[1:]].count("broken") == len(BROKEN_RUNS)
    assert not [row for row in rows if row.startswith("finished  forged")]
    intact_rows = [row for row in rows if "toy/whole" in row]
    assert [row.split()[:4] for row in intact_rows] == [["finished", "toy/whole", "drqv2+mem", "7"]] * 2


@BROKEN_RUN
@pytest.mark.quality("X5")
def test_hostile_runs_are_listed_as_json_that_any_reader_takes(runs_dir: Path) -> None:
    result = run_manyview("runs", runs_dir, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()
    assert is_printable(result.stdout)

    def reject_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    states = {
        Path(run["path"]).name.removeprefix("trap "): run["state"]
        for run in json.loads(result.stdout, parse_constant=reject_constant)
    }
    assert {name: states[name] for name in BROKEN_RUNS} == dict.fromkeys(BROKEN_RUNS, "broken")
    assert not [name for name in LISTED_RUNS if states[name] == "broken"]


@BROKEN_RUN
@FORGED_NAMES
@pytest.mark.quality("X5", "X6")
def test_hostile_runs_are_drawn_or_left_out_beside_whole_ones(runs_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "curves.svg"
    result = run_manyview("plot", runs_dir, "--out", out)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert is_printable(result.stdout)
    lines = result.stdout.splitlines()
    assert lines[-1] == f"written to {out}"
    assert "toy/whole, drqv2+mem, 2 seeds: 812.3 after 1,000, 812.3 after 1,000 frames" in lines
    comments = re.findall(r"<!-- (.*?) -->", out.read_text())
    assert {"toy/whole", r"$\frac{"} <= set(comments)
    assert is_printable("\n".join(comments))


@BROKEN_RUN
@FORGED_NAMES
@pytest.mark.quality("X5", "X6")
def test_hostile_runs_are_listed_as_csv_without_formulas(runs_dir: Path) -> None:
    result = run_manyview("runs", runs_dir, "--csv")
    assert (result.returncode, result.stderr) == (0, "")
    assert is_printable(result.stdout)
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert len(rows) == len(BROKEN_RUNS) + len(LISTED_RUNS) + 4
    assert not [cell for row in rows for cell in row.values() if cell.startswith(("=", "+", "@"))]
    (run,) = [row for row in rows if row["path"].endswith("trap spreadsheet")]
    assert [run[name][:2] for name in ("task", "method", "reason")] == ["'=", "'@", "'-"]


@BROKEN_RUN
@FORGED_NAMES
@pytest.mark.quality("X5", "X6")
def test_hostile_runs_are_reported_beside_whole_ones(runs_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = run_manyview("report", runs_dir, "--out", out)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert is_printable(result.stdout + result.stderr)
    assert out.stat().st_size <= MAX_PAGE_BYTES
    page = check_page(out.read_text())
    assert page.text.count("alert(1)") > 20
    assert "toy/whole" in page.texts
    assert "video" not in page.tags
    rows = [row for row in page.texts if row.startswith("trap ")]
    assert set(BROKEN_RUNS) - {"unknown end", *(name for name in BROKEN_RUNS if "manifest" in name)} <= {
        name.removeprefix("trap ") for name in rows
    }


@BROKEN_RUN
@FORGED_NAMES
@pytest.mark.quality("X5", "X6")
@pytest.mark.parametrize("name", ["markup", "escapes", "many settings", "long names", "config pipe", "deep records"])
def test_a_hostile_run_is_compared_or_refused_in_a_line(runs_dir: Path, name: str) -> None:
    result = run_manyview("compare", runs_dir / "a", runs_dir / f"trap {name}")
    assert is_printable(result.stdout + result.stderr)
    assert "Traceback" not in result.stderr
    if name in BROKEN_RUNS:
        assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    else:
        assert (result.returncode, result.stderr) == (0, "")
        assert len(result.stdout) < 300_000
    if name == "markup":
        assert MARKUP[:20] in result.stdout
