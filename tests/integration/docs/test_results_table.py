from pathlib import Path

import pytest

from experiments import adaptation, composition, coverage, deep_sea, games, readme_table
from experiments.adapters.__main__ import make_table as make_adapters_table
from experiments.results_table import TABLES, make_table
from experiments.tables import format_table, read_runs

ROOT = Path(__file__).parents[3]
RESULTS_PAGE, EARLIER_PAGE = (ROOT / "docs" / "research" / name for name in ("results.md", "earlier.md"))
EARLIER = ("dmc", "diagnostics", "dmc_ablation", "procgen", "procgen_training")
SHOWN = ("base", "state", "bonus", "privileged")


@pytest.mark.parametrize("name", SHOWN)
def test_the_tables_of_the_results_page_are_those_of_the_studies(name: str) -> None:
    assert make_table(name) in RESULTS_PAGE.read_text()


@pytest.mark.parametrize("name", EARLIER)
def test_the_tables_of_earlier_comparisons_are_those_of_the_studies(name: str) -> None:
    assert make_table(name) in EARLIER_PAGE.read_text()


@pytest.mark.parametrize("name", sorted(TABLES.keys() - {*SHOWN, *EARLIER}))
def test_the_other_tables_can_be_printed(name: str) -> None:
    head, _, *body = make_table(name).splitlines()
    assert body
    assert {line.count(" | ") for line in body} == {head.count(" | ")}


def test_deep_sea_with_earlier_settings_is_that_of_the_study() -> None:
    assert deep_sea.make_table() in EARLIER_PAGE.read_text()


def test_other_frameworks_on_the_results_page_are_those_of_the_study() -> None:
    assert make_adapters_table() in RESULTS_PAGE.read_text()


def test_the_bonuses_on_the_results_page_are_those_of_the_study() -> None:
    rows = composition.list_rows(deep_sea.read_attempts(composition.STUDY))
    assert format_table(composition.HEAD, rows) in RESULTS_PAGE.read_text()


def test_the_controls_on_the_results_page_are_those_of_the_study() -> None:
    rows = adaptation.list_rows(deep_sea.read_attempts(adaptation.STUDY))
    assert format_table(adaptation.HEAD, rows) in RESULTS_PAGE.read_text()


def test_coverage_on_the_results_page_is_that_of_the_study() -> None:
    assert format_table(coverage.HEAD, coverage.list_rows(read_runs(coverage.STUDY))) in RESULTS_PAGE.read_text()


def test_random_play_on_the_results_page_is_that_of_the_study() -> None:
    assert format_table(games.HEAD, games.list_rows(read_runs(games.STUDY))) in RESULTS_PAGE.read_text()


def test_the_table_of_the_readme_is_that_of_the_studies() -> None:
    assert format_table(readme_table.HEAD, readme_table.list_rows()) in (ROOT / "README.md").read_text()
