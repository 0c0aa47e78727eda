"""Pytest plugin: tests record figures for quality rows and are held to the bars."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quality.rows import ROWS

Figure = Callable[..., None]


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """`figure(value)` or `figure(value, "name")`: record a measurement for the test's row and hold it to the bar.

    A test of several rows says which one by the figure's name.
    """
    rows = [ROWS[id_] for id_ in _row_ids(request.node)]
    slack: float = request.config.getoption("--slack")

    def record(value: float, name: str = "") -> None:
        (row,) = (row for row in rows if name in row.bars)
        bar = row.bars[name]
        request.node.user_properties.append(("figure", [name, float(value)]))
        held = bar.relaxed(slack)
        assert held.met_by(value), f"{row.id} {name} {value:.4g}, bar {held.kind} {held.value:g}"

    return record


@pytest.fixture
def slack(request: pytest.FixtureRequest) -> float:
    """What a bar of a time is multiplied by, in tests of no row: 1, or more on a machine that others may use."""
    return 1 + float(request.config.getoption("--slack"))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("quality")
    group.addoption("--quality", metavar="ID", help="run only the tests of this quality row")
    group.addoption("--slack", type=float, default=0.0, metavar="SHARE", help="let figures miss their bars by so much")
    group.addoption("--quality-report", metavar="FILE", help="append a JSON line for each test of a quality row")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        unknown = set(_row_ids(item)) - set(ROWS)
        if unknown:
            raise pytest.UsageError(f"{item.nodeid} names unknown quality rows {sorted(unknown)}")
    asked = config.getoption("--quality")
    if asked:
        config.hook.pytest_deselected(items=[item for item in items if asked not in _row_ids(item)])
        items[:] = [item for item in items if asked in _row_ids(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report: pytest.TestReport = yield
    file = item.config.getoption("--quality-report")
    if file and _row_ids(item) and (report.when == "call" or not report.passed):
        line = {
            "passed": report.passed,
            "figures": [value for key, value in report.user_properties if key == "figure"],
            "reason": "" if report.passed else _reason(report),
        }
        with Path(file).open("a") as out:
            out.write(json.dumps(line) + "\n")
    return report


def _row_ids(item: pytest.Item) -> list[str]:
    return [id_ for mark in item.iter_markers("quality") for id_ in mark.args]


def _reason(report: pytest.TestReport) -> str:
    if report.skipped:
        return f"skipped: {report.nodeid}"
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longreprtext).strip().splitlines()[0]
