"""Reports on kept studies."""

from pathlib import Path

import pytest

from experiments import report, tables
from experiments.tables import append_run
from tests.support.pages import check_page
from tests.unit.experiments.test_tables import finished


def test_a_kept_study_is_a_page_without_its_run_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    for seed in (1, 2, 3):
        run = finished(tmp_path / f"{seed}", seed)
        append_run("small", run, "slow", results=results)
    append_run("small", finished(tmp_path / "fast", 1, bonus={"k": 5}), "fast", results=results)
    monkeypatch.setattr(report, "read_runs", lambda study: tables.read_runs(study, results=results))
    monkeypatch.setattr(report, "read_settings", lambda run: tables.read_settings(run, results=results))
    report.main(["small", "--out", str(tmp_path / "page.html")])
    assert capsys.readouterr().out.startswith("4 runs, ")
    page = check_page((tmp_path / "page.html").read_text())
    assert "4 runs on 1 task. All of them finished." in page.text
    assert {"drqv2+mem, variant slow (3 seeds)", "drqv2+mem, variant fast (1 seed)"} <= set(page.texts)
    assert "bonus.mem.k" in page.texts
    assert "commit abc123" in page.text
