"""`manyview plot`: curves, published results and errors."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from manyview.cli.main import main
from manyview.report.plotting import X_LABELS
from manyview.report.runs import CONFIG_FILE, METRICS_FILE
from tests.support.run_dirs import TASK, format_record, write_run_dir


def read_svg_text(svg: Path) -> str:
    """Return the texts of an SVG file, which matplotlib writes as comments."""
    return "\n".join(re.findall(r"<!-- (.*?) -->", svg.read_text()))


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """Return a directory of three runs that differ in their seed."""
    for seed in (1, 2, 3):
        write_run_dir(tmp_path / "runs" / f"seed{seed}", [0.0, 10.0 * seed], seed=seed)
    return tmp_path / "runs"


def test_all_runs_below_a_folder_are_plotted_and_summarized(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "curves.png"
    assert main(["plot", str(runs_dir), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{TASK}, drqv2+mem, 3 seeds: 20.0 (10.0 to 30.0) after 1,000 frames",
        f"written to {out}",
    ]
    with Image.open(out) as image:
        assert len(image.convert("RGB").getcolors(2**24) or []) > 10


@pytest.mark.parametrize("unit", X_LABELS)
def test_the_axis_names_its_unit_and_the_legend_the_seeds(unit: Any, runs_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "curves.svg"
    assert main(["plot", str(runs_dir), "--out", str(out), "--x", unit]) == 0
    text = read_svg_text(out)
    assert X_LABELS[unit] in text
    assert "drqv2+mem (3 seeds)" in text
    assert TASK in text


def test_returns_of_training_episodes_are_plotted_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write_run_dir(tmp_path / "run", [7.0], end=None), tmp_path / "curves.svg"
    with (path / METRICS_FILE).open("a") as file:
        file.writelines(format_record("episode", frames, **{"return": frames / 1000}) for frames in (1000, 2000))
    assert main(["plot", str(path), "--out", str(out), "--of", "episodes"]) == 0
    assert "1 seed: 2.0 after 2,000 frames" in capsys.readouterr().out
    assert "training episode return" in read_svg_text(out)


def test_every_task_has_a_panel(tmp_path: Path) -> None:
    names = [f"dmc/task{number}" for number in range(4)]
    for name in names:
        write_run_dir(tmp_path / "runs" / name, [1.0, 2.0], task=name)
    out = tmp_path / "curves.svg"
    assert main(["plot", *(str(tmp_path / "runs" / name) for name in names), "--out", str(out)]) == 0
    assert all(name in read_svg_text(out).splitlines() for name in names)


def test_published_results_are_plotted_up_to_the_last_frame_of_the_curves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run_dir(tmp_path / "run", [1.0, 2.0], task="dmc/walker_walk")
    common_fields = {"suite": "dmc", "returns": [5, 6, 7], "source": "here", "views": 1}
    rows = [
        {**common_fields, "method": method, "task": task, "frames": frames}
        for method, task, frames in (
            ("early", "walker_walk", 1000),
            ("late", "walker_walk", 50_000),
            ("elsewhere", "hopper_hop", 1000),
        )
    ]
    published_file, out = tmp_path / "published.json", tmp_path / "curves.svg"
    published_file.write_text(json.dumps({"results": rows}))
    assert main(["plot", str(tmp_path / "run"), "--out", str(out), "--published", str(published_file)]) == 0
    text = read_svg_text(out)
    assert "early, published (1 view, 3 seeds)" in text
    assert "late" not in text
    assert "elsewhere" not in text
    write_run_dir(tmp_path / "other", [1.0])
    assert main(["plot", str(tmp_path / "other"), "--out", str(out), "--published", str(published_file)]) == 0
    assert f"note: {published_file} has no results for {TASK}" in capsys.readouterr().out


def test_a_run_that_is_passed_twice_is_plotted_once(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(runs_dir), str(runs_dir / "seed1"), "--out", str(tmp_path / "a.png")]) == 0
    assert "3 seeds" in capsys.readouterr().out


def test_runs_that_cannot_be_plotted_are_skipped_with_a_note(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (write_run_dir(tmp_path / "runs" / "torn") / CONFIG_FILE).write_text("{")
    write_run_dir(tmp_path / "runs" / "young")
    write_run_dir(tmp_path / "runs" / "again", [0.0, 1.0], seed=3)
    assert main(["plot", str(runs_dir), "--out", str(tmp_path / "a.png")]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert notes == [
        f"note: skipped {runs_dir / 'torn'}: config.json is not valid JSON",
        f"note: skipped {runs_dir / 'young'}: no evaluations to plot",
        f"note: {TASK}, drqv2+mem: seed 3 is included more than once",
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--out", "a.png"], "no runs: expected at least one directory, got none"),
        (["none", "--out", "a.png"], "directory does not exist: none"),
        (["empty", "--out", "a.png"], "no run in or below empty"),
        (["young", "--out", "a.png"], "no evaluations to plot"),
        (["run", "--out", "a.png", "--of", "episodes"], "no episodes to plot"),
        (["run", "--out", "a.png", "--of", "test_levels"], "no test levels to plot"),
        (["run", "--out", "a.xyz"], "xyz"),
        (["run", "--out", "a.png", "--published", "none.json"], "none.json"),
        (["run", "--out", "a.png", "--published", "a.json", "--x", "steps"], "published results need frames"),
        (
            ["run", "--out", "a.png", "--published", "a.json", "--of", "episodes"],
            "published results are of evaluations",
        ),
    ],
)
def test_invalid_arguments_are_refused_with_a_reason(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    write_run_dir(Path("run"), [1.0])
    write_run_dir(Path("young"))
    assert main(["plot", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_without_matplotlib_its_extra_is_named(
    runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", str(runs_dir), "--out", str(tmp_path / "a.png")]) == 2
    assert 'pip install "manyview[plots]"' in capsys.readouterr().err
