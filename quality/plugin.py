"""Pytest plugin: tests record figures for quality rows and are held to the bars."""

from collections.abc import Callable
from typing import cast

import pytest

from quality.rows import ROWS

Figure = Callable[..., None]


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """`figure(value)` or `figure(value, "name")`: record a measurement for the test's row and hold it to the bar."""
    ids = _row_ids(request.node)
    assert len(ids) == 1, "a test with figures shows exactly one quality row"
    row = ROWS[ids[0]]

    def record(value: float, name: str = "") -> None:
        bar = row.bars[name]
        request.node.user_properties.append(("figure", [row.id, name, float(value)]))
        assert bar.met_by(value), f"{row.id} {name} {value:.4g}, bar {bar.kind} {bar.value:g}"

    return record


def figures_of(report: pytest.TestReport) -> list[tuple[str, str, float]]:
    """(row, name, value) of every figure that a test recorded."""
    return [cast(tuple[str, str, float], value) for key, value in report.user_properties if key == "figure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quality", metavar="IDS", help="run only the tests of these quality rows, as S6,P3")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        unknown = set(_row_ids(item)) - set(ROWS)
        if unknown:
            raise pytest.UsageError(f"{item.nodeid} names unknown quality rows {sorted(unknown)}")
    asked = config.getoption("--quality")
    if asked:
        wanted = set(asked.split(","))
        kept = [item for item in items if wanted & set(_row_ids(item))]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def _row_ids(item: pytest.Item) -> list[str]:
    return [id_ for mark in item.iter_markers("quality") for id_ in mark.args]
