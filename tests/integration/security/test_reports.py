"""Foreign runs in a folder: `manyview runs` and `manyview plot` show the others, and say what is wrong with these."""

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

ONE_BREAKS_ALL = pytest.mark.attack(
    "a run folder of deep, huge or infinite JSON, links, pipes, gigabytes or loops is a row that says why; the other "
    "runs are listed and drawn"
)
FORGES = pytest.mark.attack("names in a foreign run move no cursor, forge no row and are no formula in a plot")
MEMORY_BYTES = 3 * 2**30


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def manyview(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
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


def is_inert(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("runs")
    make_hostile_runs(path)
    yield path
    subprocess.run(["/bin/rm", "-rf", str(path)], check=True, timeout=60)  # deeper than pytest can remove


@ONE_BREAKS_ALL
@FORGES
@pytest.mark.quality("X5", "X6")
def test_hostile_runs_are_listed_beside_whole_ones(folder: Path) -> None:
    shown = manyview("runs", folder)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert is_inert(shown.stdout)
    rows = [line for line in shown.stdout.splitlines() if not line.startswith("    ")]
    assert len(rows) == 1 + len(BROKEN_RUNS) + len(LISTED_RUNS) + 4
    assert [row.split()[0] for row in rows[1:]].count("broken") == len(BROKEN_RUNS)
    assert not [row for row in rows if row.startswith("finished  forged")]
    whole = [row for row in rows if "toy/whole" in row]
    assert [row.split()[:4] for row in whole] == [["finished", "toy/whole", "drqv2+mem", "7"]] * 2


@ONE_BREAKS_ALL
@pytest.mark.quality("X5")
def test_hostile_runs_are_listed_as_json_that_any_reader_takes(folder: Path) -> None:
    shown = manyview("runs", folder, "--json")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.isascii()
    assert is_inert(shown.stdout)

    def refuse_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    states = {
        Path(run["path"]).name.removeprefix("trap "): run["state"]
        for run in json.loads(shown.stdout, parse_constant=refuse_constant)
    }
    assert {name: states[name] for name in BROKEN_RUNS} == dict.fromkeys(BROKEN_RUNS, "broken")
    assert not [name for name in LISTED_RUNS if states[name] == "broken"]


@ONE_BREAKS_ALL
@FORGES
@pytest.mark.quality("X5", "X6")
def test_hostile_runs_are_drawn_or_left_out_beside_whole_ones(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "curves.svg"
    shown = manyview("plot", folder, "--out", out)
    assert shown.returncode == 0, shown.stderr
    assert "Traceback" not in shown.stderr
    assert is_inert(shown.stdout)
    lines = shown.stdout.splitlines()
    assert lines[-1] == f"written to {out}"
    assert "toy/whole, drqv2+mem, 2 seeds: 812.3 after 1,000, 812.3 after 1,000 frames" in lines
    drawn = re.findall(r"<!-- (.*?) -->", out.read_text())
    assert {"toy/whole", r"$\frac{"} <= set(drawn)
    assert is_inert("\n".join(drawn))


@ONE_BREAKS_ALL
@FORGES
@pytest.mark.quality("X5", "X6")
def test_hostile_runs_are_listed_as_csv_without_formulas(folder: Path) -> None:
    shown = manyview("runs", folder, "--csv")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert is_inert(shown.stdout)
    rows = list(csv.DictReader(io.StringIO(shown.stdout)))
    assert len(rows) == len(BROKEN_RUNS) + len(LISTED_RUNS) + 4
    assert not [cell for row in rows for cell in row.values() if cell.startswith(("=", "+", "@"))]
    (run,) = [row for row in rows if row["path"].endswith("trap spreadsheet")]
    assert [run[name][:2] for name in ("task", "method", "reason")] == ["'=", "'@", "'-"]


@ONE_BREAKS_ALL
@FORGES
@pytest.mark.quality("X5", "X6")
def test_hostile_runs_are_reported_beside_whole_ones(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    shown = manyview("report", folder, "--out", out)
    assert shown.returncode == 0, shown.stderr
    assert "Traceback" not in shown.stderr
    assert is_inert(shown.stdout + shown.stderr)
    assert out.stat().st_size <= MAX_PAGE_BYTES
    page = check_page(out.read_text())
    assert page.text.count("alert(1)") > 20
    assert "toy/whole" in page.texts
    assert "video" not in page.tags
    named = [row for row in page.texts if row.startswith("trap ")]
    assert set(BROKEN_RUNS) - {"unknown end", *(name for name in BROKEN_RUNS if "manifest" in name)} <= {
        name.removeprefix("trap ") for name in named
    }


@ONE_BREAKS_ALL
@FORGES
@pytest.mark.quality("X5", "X6")
@pytest.mark.parametrize("name", ["markup", "escapes", "many settings", "long names", "config pipe", "deep records"])
def test_a_hostile_run_is_compared_or_refused_in_a_line(folder: Path, name: str) -> None:
    shown = manyview("compare", folder / "a", folder / f"trap {name}")
    assert is_inert(shown.stdout + shown.stderr)
    assert "Traceback" not in shown.stderr
    if name in BROKEN_RUNS:
        assert (shown.returncode, len(shown.stderr.splitlines())) == (2, 1)
    else:
        assert (shown.returncode, shown.stderr) == (0, "")
        assert len(shown.stdout) < 300_000
    if name == "markup":
        assert MARKUP[:20] in shown.stdout
