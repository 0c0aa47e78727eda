from pathlib import Path

import pytest

from benchmarks import readme_table
from benchmarks.results_table import TABLES, in_markdown, table

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_the_results_are_those_of_the_kept_runs(name: str) -> None:
    assert table(name) in (ROOT / "docs" / "results.md").read_text()


def test_the_table_of_the_readme_is_that_of_the_kept_runs() -> None:
    assert in_markdown(readme_table.HEAD, readme_table.rows()) in (ROOT / "README.md").read_text()
