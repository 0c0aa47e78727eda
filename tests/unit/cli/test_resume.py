"""`manyview resume`, `manyview extend` and the closing lines of a run."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest

from manyview.cli.main import main
from manyview.cli.training import format_outcome
from manyview.report.runs import summarize_run
from manyview.training import RunDir, run
from manyview.training.runner import Runner
from tests.support.runners import abandon_runner, advance_to
from tests.support.runs import make_short_config


def test_resume_continues_with_the_settings_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = RunDir(tmp_path / "run")
    runner = Runner(make_short_config(seed=7), run_dir)
    advance_to(runner, 45)
    abandon_runner(runner)
    assert main(["resume", str(run_dir.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "seed 7" in lines[0]
    assert lines[1] == "       30 frames  resumed as if it had never stopped, bit for bit"
    assert run_dir.is_finished


def test_a_finished_run_is_reported_and_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = RunDir(tmp_path / "run")
    run(make_short_config(), run_dir)
    metrics_before = run_dir.metrics_file.read_bytes()
    assert main(["resume", str(run_dir.path)]) == 0
    assert f"has finished at 60 frames. Train on with `manyview extend {run_dir.path} --frames 120`" in (
        capsys.readouterr().out
    )
    assert run_dir.metrics_file.read_bytes() == metrics_before


def test_extend_trains_to_the_new_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = RunDir(tmp_path / "run")
    run(make_short_config(), run_dir)
    assert main(["extend", str(run_dir.path), "--frames", "90"]) == 0
    assert "finished at 90 of 90 frames" in capsys.readouterr().out
    assert run_dir.read_config().schedule.frames == 90
    records = [json.loads(line) for line in run_dir.metrics_file.read_text().splitlines()]
    assert [record["frames"] for record in records if record["kind"] == "evaluation"] == [0, 30, 60, 90]


@pytest.mark.parametrize("command", [["resume"], ["extend", "--frames", "90"]])
def test_the_code_of_a_run_must_be_confirmed(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = RunDir(tmp_path / "run")
    run(make_short_config(), run_dir)
    config = json.loads(run_dir.config_file.read_text())
    run_dir.config_file.write_text(json.dumps({**config, "task": "evil_module:make"}))
    assert main([command[0], str(run_dir.path), *command[1:]]) == 2
    assert "task 'evil_module:make' is code that is not trusted: expected --own-task" in capsys.readouterr().err
    assert "evil_module" not in sys.modules


@pytest.mark.parametrize(("command", "message"), [("resume", "holds no run"), ("extend", "holds no run")])
def test_a_directory_without_a_run_is_an_error(
    tmp_path: Path, command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path / "nothing"), *(["--frames", "9"] if command == "extend" else [])]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_the_closing_lines_of_a_stopped_run_name_the_command_that_resumes_it(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "my run")
    runner = Runner(make_short_config(), run_dir)
    advance_to(runner, 45)
    abandon_runner(runner)
    lines = list(format_outcome(run_dir, summarize_run(run_dir.path)))
    assert re.fullmatch(r"killed at 4\d of 60 frames, saved in '.*/my run', checkpoint 000000030", lines[0])
    assert lines[-1] == f"next: manyview resume '{run_dir.path}'"


def test_the_closing_lines_of_an_own_task_confirm_its_code(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run(make_short_config(), run_dir)
    summary = replace(summarize_run(run_dir.path), task="my_robot:make_env?front=0&wrist=2")
    option = "--own-task 'my_robot:make_env?front=0&wrist=2'"
    *_, last_line = format_outcome(run_dir, summary)
    assert (
        last_line
        == f"next: manyview evaluate {run_dir.path} {option}, or manyview extend {run_dir.path} {option} --frames 120"
    )


def test_the_closing_lines_of_a_run_without_a_checkpoint_say_so(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run(make_short_config(), run_dir)
    rmtree(run_dir.checkpoints_dir)
    summary = summarize_run(run_dir.path)
    assert "no checkpoint yet in" in next(format_outcome(run_dir, summary))
    *_, last_line = format_outcome(run_dir, replace(summary, state="failed"))
    assert last_line == "next: repeat the command; nothing was saved"


def test_weights_of_another_run_are_named_in_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_run_dir = RunDir(tmp_path / "first")
    run(make_short_config(), first_run_dir)
    monkeypatch.chdir(tmp_path)
    config = ["--config", "first/config.json", "--out", "second", "--seed", "2"]
    assert main(["train", "toy/hidden_goal_continuous", *config, "--from", "first"]) == 0
    assert RunDir(tmp_path / "second").read_config().schedule.initial_run == str(first_run_dir.path)
    assert main(["train", "toy/hidden_goal_continuous", "--out", "third", "--from", "nowhere"]) == 2
    assert not (tmp_path / "third").exists()
