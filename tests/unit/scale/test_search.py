"""Searches: table of settings, directories of trials, and resume."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from manyview.config.overrides import apply_overrides, to_plain
from manyview.scale.search import Range, format_directory_name, parse_search
from manyview.scale.sweep import Sweep, compute_mean_return, read_sweep
from manyview.training import RunConfig

HEAD = 'tasks = ["toy/identity_continuous"]\nmethods = ["drqv2+none"]\npreset = "minute"\nout = "searched"\n'
SETTINGS = """
[set]
"schedule.frames" = 400
"schedule.seed_frames" = 40
"schedule.random_steps" = 40
"evaluation.every_frames" = 200
"evaluation.episodes" = 2
"evaluation.video" = false
"logging.tensorboard" = false
"""
SEARCH = """
[search]
trials = 3
[search.fields]
"agent.lr" = { low = 1e-4, high = 1e-2, log = true }
"replay.n_step" = { low = 1, high = 3 }
"agent.hidden" = [16, 32]
"""


def make_sweep(directory: Path, search: str = SEARCH) -> Sweep:
    """Write a sweep file with a search and return the sweep."""
    (directory / "search.toml").write_text(HEAD + SETTINGS + search)
    return read_sweep(directory / "search.toml")


def write_finished_run(run_dir: Path, config: RunConfig, last_return: float) -> None:
    """Write the directory of a finished run with one evaluation."""
    run_dir.mkdir(parents=True)
    (run_dir / "config.json").write_text(json.dumps(to_plain(config)))
    (run_dir / "manifest.json").write_text(json.dumps({"finished": "today"}))
    records = [{"kind": "evaluation", "frames": 400, "return": last_return}, {"kind": "end", "state": "finished"}]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_trial_is_a_run_in_a_directory_named_by_its_values(tmp_path: Path) -> None:
    (trial,) = make_sweep(tmp_path).plan_trial({"agent.lr": 0.001, "replay.n_step": 2, "agent.hidden": 32})
    expected_dir = "searched/toy-identity_continuous/drqv2+none/agent.lr=0.001,replay.n_step=2,agent.hidden=32/seed1"
    assert str(trial.run_dir) == expected_dir
    assert (trial.config.agent.lr, trial.config.replay.n_step, trial.config.agent.hidden) == (0.001, 2, 32)


def test_tried_values_are_read_from_run_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = make_sweep(tmp_path)
    assert sweep.find_tried() == []
    values = {"agent.lr": 0.001, "replay.n_step": 2, "agent.hidden": 32}
    (trial,) = sweep.plan_trial(values)
    write_finished_run(trial.run_dir, trial.config, 7.5)
    other_config = apply_overrides(trial.config, {"agent": {"lr": 0.5}})
    write_finished_run(trial.run_dir.parent.with_name("something else") / "seed1", other_config, 9.0)
    assert sweep.find_tried() == [values]
    assert compute_mean_return(sweep.plan_trial(values)) == 7.5
    with pytest.raises(ValueError, match="a run with other settings: schedule"):
        replace(sweep, set={**sweep.set, "schedule.frames": 500}).find_tried()


def test_sampled_numbers_are_rounded_within_their_range() -> None:
    field = Range(low=1e-4, high=0.00123456, log=True)
    assert field.round_value(0.000987654321) == 0.0009877
    assert field.round_value(0.00123456) == 0.00123456
    assert Range(low=1, high=9).round_value(4) == 4
    assert format_directory_name({"a": "x/y"}) == "a=x-y"


@pytest.mark.parametrize(
    ("search", "error"),
    [
        ("[search]\ntrials = 3\n", "expected only `trials` and a table `fields`"),
        (
            "[search]\ntrials = 0\n[search.fields]\n'agent.hidden' = [16]\n",
            "expected at least 1 trial and 1 field, got trials 0",
        ),
        ("[search]\ntrials = 3\n[search.fields]\n'agent.hidden' = 16\n", "agent.hidden must be a list of values"),
        ("[search]\ntrials = 1\n[search.fields]\n'agent.hiden' = [16]\n", "unknown setting agent.hiden"),
        (
            "[search]\ntrials = 3\n[search.fields]\n'agent.lr' = { low = 1, high = 0 }\n",
            "expected numbers with low < high",
        ),
        (
            "[search]\ntrials = 3\n[search.fields]\n'replay.n_step' = { low = 0, high = 3 }\n",
            "replay.n_step: expected at least 1",
        ),
        ("[search]\ntrials = 3\n[search.fields]\n'agent.hidden' = [16, 32]\n", "too many trials: expected at most 2"),
        ("[search]\ntrials = 1\n[search.fields]\n'evaluation.episodes' = [0, 5]\n", "a search needs evaluations"),
        (SEARCH + "[variants.a]\n", "without variants"),
    ],
)
def test_an_invalid_search_is_refused_before_any_run(tmp_path: Path, search: str, error: str) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        make_sweep(tmp_path, search).plan_runs()


def test_the_search_of_the_docs_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "sweeps.md").read_text()
    (tmp_path / "search.toml").write_text(page.split("```toml\n")[2].split("```")[0])
    sweep = read_sweep(tmp_path / "search.toml")
    assert sweep.search is not None
    assert sweep.plan_runs() == []
    values = {"bonus.beta0": 0.0312, "bonus.k": 4, "bonus.entropy": "joint"}
    assert f"`{format_directory_name(values)}`" in page


@pytest.mark.long
@pytest.mark.quality("L7")
@pytest.mark.xdist_group("ray")
def test_a_repeated_search_runs_only_missing_trials(tmp_path: Path) -> None:
    """The first command runs two trials, the second a third one, and the last none."""

    def run_search(trials: int) -> str:
        make_sweep(tmp_path, SEARCH.replace("trials = 3", f"trials = {trials}"))
        command = [sys.executable, "-m", "manyview", "sweep", "search.toml"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert run_search(2).count(": started") == 2
    output = run_search(3)
    assert output.count(": started") == 1
    assert len(re.findall(r"^ +-?\d+\.\d  agent.lr=", output, flags=re.M)) == 3
    assert "started" not in run_search(3)


def test_a_search_with_an_unknown_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="expected only `trials`"):
        parse_search({"trials": 3, "fields": {"a": [1]}, "more": 1})
