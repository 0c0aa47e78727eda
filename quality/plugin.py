"""Pytest plugin: record the figures of quality rows and assert their bars."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quality.rows import ROWS

Figure = Callable[..., None]


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Return a function that records a measurement for the test's row and asserts its bar.

    Call it as `figure(value)` or `figure(value, "name")`. In a test of several rows the figure's name selects the row.
    """
    rows = [ROWS[id_] for id_ in _row_ids(request.node)]
    slack: float = request.config.getoption("--slack")

    def record(value: float, name: str = "") -> None:
        (row,) = (row for row in rows if name in row.bars)
        bar = row.bars[name]
        request.node.user_properties.append(("figure", [name, float(value)]))
        relaxed_bar = bar.relax(slack)
        passes = relaxed_bar.is_met_by(value)
        assert passes, f"{row.id} {name} {value:.4g}, bar {relaxed_bar.kind} {relaxed_bar.value:g}"

    return record


@pytest.fixture
def slack(request: pytest.FixtureRequest) -> float:
    """Return the factor for time limits in tests without a row: 1, or more on a shared machine."""
    return 1 + float(request.config.getoption("--slack"))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("quality")
    group.addoption("--quality", metavar="ID", help="run only the tests of this quality row")
    group.addoption("--slack", type=float, default=0.0, metavar="SHARE", help="relax the bars by this share")
    group.addoption("--quality-report", metavar="FILE", help="append one JSON line per test of a quality row")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        unknown = set(_row_ids(item)) - set(ROWS)
        if unknown:
            raise pytest.UsageError(f"{item.nodeid} names unknown quality rows {sorted(unknown)}")
    row_id = config.getoption("--quality")
    if row_id:
        config.hook.pytest_deselected(items=[item for item in items if row_id not in _row_ids(item)])
        items[:] = [item for item in items if row_id in _row_ids(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report: pytest.TestReport = yield
    file = item.config.getoption("--quality-report")
    if file and _row_ids(item) and (report.when == "call" or not report.passed):
        line = {
            "passed": report.passed,
            "figures": [value for key, value in report.user_properties if key == "figure"],
            "reason": "" if report.passed else _get_reason(report),
        }
        with Path(file).open("a") as out:
            out.write(json.dumps(line) + "\n")
    return report


def _row_ids(item: pytest.Item) -> list[str]:
    return [id_ for mark in item.iter_markers("quality") for id_ in mark.args]


def _get_reason(report: pytest.TestReport) -> str:
    if report.skipped:
        return f"skipped: {report.nodeid}"
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longreprtext).strip().splitlines()[0]
