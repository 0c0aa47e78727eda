from pathlib import Path

from benchmarks.results_table import table

PAGE = Path(__file__).parents[2] / "docs" / "results.md"


def test_the_table_of_the_results_is_that_of_the_kept_runs() -> None:
    assert table("dmc") in PAGE.read_text()
