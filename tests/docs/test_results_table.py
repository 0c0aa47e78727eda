from pathlib import Path

import pytest

from benchmarks.results_table import TABLES, table

PAGE = Path(__file__).parents[2] / "docs" / "results.md"


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_the_results_are_those_of_the_kept_runs(name: str) -> None:
    assert table(name) in PAGE.read_text()
