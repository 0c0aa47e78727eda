"""`manyview paper`: list, show and plot, and their errors."""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from PIL import Image

from manyview.cli.main import main
from manyview.report.runs import METRICS_FILE
from manyview.scale.paper import FIGURES, plan_methods, read_figure
from manyview.scale.sweep import PlannedRun
from manyview.training import RunDir
from tests.support.run_dirs import format_record


def plan_runs(directory: Path, name: str, *, size: Any = "paper") -> list[PlannedRun]:
    """Return the planned runs of a figure, with run directories below `directory`."""
    figure = read_figure(name, size)
    runs, _ = plan_methods(figure.sweep)
    return [run._replace(run_dir=directory / run.run_dir.relative_to(figure.sweep.out)) for run in runs]


def write_run(run: PlannedRun, returns: Sequence[float], *, every_frames: int = 100_000, field: str = "return") -> None:
    """Write a run directory with evaluations and episodes, without training."""
    RunDir(run.run_dir).initialize(run.config, {})
    with (run.run_dir / METRICS_FILE).open("a") as file:
        for number, value in enumerate(returns, 1):
            file.write(format_record("evaluation", number * every_frames, **{"return": 0.0, field: value}))
            file.write(format_record("episode", number * every_frames, **{"return": value}))


def read_svg_texts(svg: Path) -> list[str]:
    """Return the texts of an SVG file, which matplotlib writes as comments."""
    return re.findall(r"<!-- (.*?) -->", svg.read_text())


def test_the_list_counts_the_runs_of_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["figure_3", "120", "runs"],
        ["figure_4", "120", "runs"],
        ["figure_5", "90", "runs"],
        ["figure_6", "300", "runs"],
        ["table_2", "450", "runs"],
    ]


def test_a_figure_is_explained_with_its_settings_and_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paper", "show", "figure_4", "--runs", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("Figure 4: DrQ-v2 with MEM against RE3, CURL and DRIBO")
    assert f"120 in {tmp_path}, 0 finished" in output
    assert "preset paper/dmc/sac, env.views=['0'], env.image_size=100" in output
    assert "manyview paper run figure_4\n" in output
    assert str(FIGURES["figure_4"]) in output


def test_curves_have_the_layout_of_the_paper_and_missing_runs_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in plan_runs(tmp_path / "runs", "figure_5"):
        if run.config.task in ("dmc/pendulum_swingup", "dmc/acrobot_swingup") and run.config.seed < 4:
            write_run(run, [10.0 * run.config.seed, 20.0 * run.config.seed])
            if run.config.seed != 2 or run.config.task != "dmc/acrobot_swingup":
                RunDir(run.run_dir).mark_finished()
    out = tmp_path / "new" / "figure.svg"
    assert main(["paper", "plot", "figure_5", "--runs", str(tmp_path / "runs"), "--out", str(out)]) == 0
    texts = read_svg_texts(out)
    tasks = list(read_figure("figure_5").sweep.tasks)
    assert [text for text in texts if text.startswith("dmc/")] == tasks
    assert texts.count("no runs yet") == 4
    assert texts.count("drqv2+mem (3 seeds)") == 2
    lines = capsys.readouterr().out.splitlines()
    missing_lines = [line for line in lines if line.startswith("missing: ")]
    assert len(missing_lines) == 6 * 3
    assert missing_lines[0] == "missing: dmc/acrobot_swingup, drqv2+mem: seeds 4, 5"
    assert "missing: dmc/reach_duplo, drqv2+none: seeds 1, 2, 3, 4, 5" in missing_lines
    assert [line for line in lines if line.startswith("unfinished: ")] == [
        f"unfinished: dmc/acrobot_swingup, {method}: seeds 2" for method in ("drqv2+mem", "drqv2+re3", "drqv2+none")
    ]
    assert lines[-1] == "18 of 90 runs have returns"


def test_training_curves_of_the_small_size_are_plotted(tmp_path: Path) -> None:
    for run in plan_runs(tmp_path / "runs", "figure_6", size="cpu")[:10]:
        write_run(run, [1.0, 2.0])
    out, runs = tmp_path / "figure_6.png", str(tmp_path / "runs")
    assert main(["paper", "plot", "figure_6", "--size", "cpu", "--runs", runs, "--out", str(out)]) == 0
    with Image.open(out) as image:
        width, height = image.size
    assert (width, height) == (3 * 720, 2 * 504)  # three columns, two rows


def test_the_table_shows_mean_and_deviation_before_the_values_of_the_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last_returns = {1: 15.0, 2: 18.25, 3: 20.0}
    for run in plan_runs(tmp_path / "runs", "table_2"):
        if (run.config.task, run.config.method) == ("procgen/bigfish", "ppo+mem") and run.config.seed in last_returns:
            write_run(run, [3.0, last_returns[run.config.seed]], field="test_return")
    out = tmp_path / "table.md"
    assert main(["paper", "plot", "table_2", "--runs", str(tmp_path / "runs"), "--out", str(out)]) == 0
    lines = out.read_text().splitlines()
    assert len(lines) == 2 + 9
    expected = f"{fmean(last_returns.values()):.1f}±{pstdev(last_returns.values()):.1f} (3 seeds) / 18.5±5.2 |"
    assert lines[2].startswith("| procgen/bigfish | no runs / 4.0±1.2 |")
    assert lines[2].endswith(expected)
    output = capsys.readouterr().out
    assert all(line in output for line in lines)
    assert "missing: procgen/bigfish, ppo+mem: seeds 4, 5, 6, 7, 8, 9, 10" in output


def test_a_part_of_a_figure_can_be_planned_and_plotted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tasks", "dmc/cheetah_run", "--methods", "sac+mem", "--seeds", "1", "2", "--runs", str(tmp_path)]
    assert main(["paper", "plot", "figure_3", *options]) == 1
    captured = capsys.readouterr()
    assert captured.out == "missing: dmc/cheetah_run, sac+mem: seeds 1, 2\n"
    assert captured.err == f"no runs of figure_3 in {tmp_path}. Train them with `manyview paper run`\n"


def test_a_run_with_other_settings_is_named_and_not_plotted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = plan_runs(tmp_path, "figure_5", size="cpu")[0]
    write_run(first, [1.0])
    assert main(["paper", "plot", "figure_5", "--runs", str(tmp_path), "--methods", first.config.method]) == 1
    assert f"{first.run_dir}: the directory holds a run with other settings" in capsys.readouterr().out


def test_a_broken_run_counts_as_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = plan_runs(tmp_path, "figure_5")
    write_run(runs[0], [1.0])
    write_run(runs[1], [1.0])
    (runs[1].run_dir / METRICS_FILE).unlink()
    out = tmp_path / "figure.png"
    assert main(["paper", "plot", "figure_5", "--runs", str(tmp_path), "--out", str(out)]) == 0
    assert "1 of 90 runs have returns" in capsys.readouterr().out


@pytest.mark.parametrize("action", ["show", "run", "plot"])
@pytest.mark.parametrize(
    "name",
    ["", "..", "../../etc/passwd", "/etc/passwd", "figure_3.toml", "__init__", "figure_3\x1b[31m\nforged", "x" * 9000],
)
def test_a_name_that_is_no_figure_is_refused_in_one_line(
    action: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paper", action, name]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("unknown figure ")
    assert captured.err.count("\n") == 1
    assert captured.err[:-1].isprintable()
    assert len(captured.err) <= 2_001


def test_a_misspelled_figure_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "show", "figure3"]) == 2
    assert "expected one of figure_3, figure_4" in (error := capsys.readouterr().err)
    assert "did you mean figure_3?" in error
