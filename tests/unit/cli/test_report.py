"""`manyview report` and `manyview compare`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from manyview.api import Run
from manyview.cli.main import main
from manyview.report.camera_file import CAMERAS_FILE
from manyview.report.runs import CONFIG_FILE
from manyview.training import RunDir, run
from tests.support.pages import check_page
from tests.support.run_dirs import TASK, write_run_dir
from tests.support.runs import make_short_config


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """Return a directory of runs with two methods and three seeds each."""
    for method in ("sac+mem", "sac+none"):
        for seed in (1, 2, 3):
            write_run_dir(tmp_path / "runs" / method / f"seed{seed}", [0.0, 10.0 * seed], seed=seed, method=method)
    return tmp_path / "runs"


def test_all_runs_below_a_folder_are_in_the_page(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "page.html"
    (write_run_dir(runs_dir / "lost") / CONFIG_FILE).write_text("{")
    assert main(["report", str(runs_dir), "--out", str(out)]) == 0
    captured = capsys.readouterr()
    note, summary = captured.out.splitlines()
    assert note == "note: lost is broken: config.json is not valid JSON"
    assert re.fullmatch(rf"6 runs, [1-9]\d kB, written to {out}", summary)
    assert captured.err.splitlines()[-1] == "reading 7 of 7: sac+none/seed3"
    page = check_page(out.read_text())
    assert "7 runs on 1 task. Not finished: 1 broken." in page.text
    assert "sac+mem (3 seeds)" in page.texts
    assert str(tmp_path) not in out.read_text()


def test_a_single_run_is_reported_by_its_name(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(write_run_dir(tmp_path / "alone", [1.0, 2.0])), "--out", str(out)]) == 0
    page = check_page(out.read_text())
    assert "alone" in page.texts
    assert "There is no other method to compare with." in page.text


def test_a_run_that_is_passed_twice_counts_once(runs_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(runs_dir), str(runs_dir / "sac+mem"), "--out", str(out)]) == 0
    assert "6 runs on 1 task." in check_page(out.read_text()).text


def test_published_results_are_in_the_page(runs_dir: Path, tmp_path: Path) -> None:
    suite, name = TASK.split("/")
    row = {"method": "theirs", "suite": suite, "task": name, "frames": 500, "returns": [1, 2, 3], "source": "a paper"}
    (tmp_path / "published.json").write_text(json.dumps({"results": [row]}))
    options = ["--out", str(tmp_path / "page.html"), "--published", str(tmp_path / "published.json")]
    assert main(["report", str(runs_dir), *options]) == 0
    assert "a paper" in check_page((tmp_path / "page.html").read_text()).texts


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ([], "no runs: expected at least one directory, got none"),
        (["none"], "directory does not exist"),
        (["."], "no run in or below"),
        (["run", "--out", "page.png"], r"expected a file that ends with \.html"),
        (["run", "--published", "none.json"], "none.json"),
        (["broken"], r"expected 1 to 500 readable runs, got 0; broken: config\.json is not valid JSON"),
    ],
)
def test_invalid_arguments_are_refused_in_a_line(
    arguments: list[str],
    pattern: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in {"run", "broken"}.intersection(arguments):
        write_run_dir(tmp_path / name, [1.0])
    if "broken" in arguments:
        (tmp_path / "broken" / CONFIG_FILE).write_text("{")
    assert main(["report", *arguments]) == 2
    assert re.search(pattern, capsys.readouterr().err.splitlines()[-1])
    assert not (tmp_path / "report.html").exists()


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a short finished run."""
    path = tmp_path_factory.mktemp("trained") / "run"
    run(make_short_config(), RunDir(path))
    return path


def test_a_run_in_python_writes_its_report(run_path: Path, tmp_path: Path) -> None:
    Run(run_path).report(tmp_path / "page.html")
    page = check_page((tmp_path / "page.html").read_text())
    assert "1 run on 1 task. All of them finished." in page.text
    assert "manyview train toy/" in page.text


def test_cameras_are_measured_once_and_reported(run_path: Path, tmp_path: Path) -> None:
    options = ["--episodes", "2", "--no-faults", "--out", str(run_path / CAMERAS_FILE)]
    assert main(["cameras", str(run_path), *options]) == 0
    assert main(["report", str(run_path), "--out", str(tmp_path / "page.html")]) == 0
    page = check_page((tmp_path / "page.html").read_text())
    assert "none (random actions)" in page.texts
    assert "Not measured:" not in page.texts


def compare_runs(first: Path, second: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the output lines of `manyview compare`."""
    assert main(["compare", str(first), str(second)]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_comparison_shows_results_settings_versions_and_curves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests: list[dict[str, Any]] = [{"versions": {"torch": number, "numpy": "1"}} for number in ("2.13", "2.10")]
    first = write_run_dir(
        tmp_path / "a", [0.0, 9.0, 7.5], method="sac+mem", replay={"batch_size": 8}, manifest=manifests[0]
    )
    second = write_run_dir(
        tmp_path / "b", [0.0, 3.0], method="sac+none", replay={"batch_size": 16}, manifest=manifests[1], end="stopped"
    )
    lines = compare_runs(first, second, capsys)
    assert lines[:2] == [f"● {first}", f"○ {second}"]
    results = lines[lines.index("results") + 2 :]
    assert [re.split("  +", line) for line in results[: results.index("")]] == [
        ["state", "finished", "stopped"],
        ["frames", "2,000", "1,000"],
        ["last return", "7.5", "3.0"],
        ["best return", "9.0", "3.0"],
        ["wall-clock", "20 s", "10 s"],
    ]
    settings = lines[lines.index("settings that differ") + 2 :]
    assert [line.split() for line in settings[: settings.index("")]] == [
        ["bonus.name", "mem", "none"],
        ["replay.batch_size", "8", "16"],
        ["representation.name", "mem", "pixel"],
    ]
    assert ["torch", "2.13", "2.10"] in [line.split() for line in lines]
    assert not [line for line in lines if line.startswith("numpy")]
    start = lines.index("evaluation return over simulator frames")
    assert "●" in lines[start + 1]
    assert lines[-2].startswith("● manyview train ")


def test_runs_with_equal_settings_have_no_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = compare_runs(write_run_dir(tmp_path / "a"), write_run_dir(tmp_path / "b", manifest={}), capsys)
    assert {"no settings differ", "no versions and hardware differ", "no evaluations"} <= set(lines)


def test_many_differences_are_truncated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {str(number): number for number in range(300)}
    lines = compare_runs(write_run_dir(tmp_path / "a"), write_run_dir(tmp_path / "b", env=settings), capsys)
    assert "and 100 more" in lines


def test_a_broken_run_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run_dir(tmp_path / "a", [1.0])
    assert main(["compare", str(run), str(tmp_path / "none")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{tmp_path / 'none'}: config.json does not exist"
