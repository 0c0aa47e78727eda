"""A search: what its table means, what its folders tell, and that it goes on where it was."""

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


def sweep(folder: Path, search: str = SEARCH) -> Sweep:
    (folder / "search.toml").write_text(HEAD + SETTINGS + search)
    return read_sweep(folder / "search.toml")


def finished_run(folder: Path, config: RunConfig, last_return: float) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(to_plain(config)))
    (folder / "manifest.json").write_text(json.dumps({"finished": "today"}))
    records = [{"kind": "evaluation", "frames": 400, "return": last_return}, {"kind": "end", "state": "finished"}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_trial_is_an_ordinary_run_in_a_folder_that_says_its_values(tmp_path: Path) -> None:
    (one,) = sweep(tmp_path).plan_trial({"agent.lr": 0.001, "replay.n_step": 2, "agent.hidden": 32})
    folder = "searched/toy-identity_continuous/drqv2+none/agent.lr=0.001,replay.n_step=2,agent.hidden=32/seed1"
    assert str(one.run_dir) == folder
    assert (one.config.agent.lr, one.config.replay.n_step, one.config.agent.hidden) == (0.001, 2, 32)


def test_what_was_tried_is_read_off_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = sweep(tmp_path)
    assert wanted.find_tried() == []
    values = {"agent.lr": 0.001, "replay.n_step": 2, "agent.hidden": 32}
    (one,) = wanted.plan_trial(values)
    finished_run(one.run_dir, one.config, 7.5)
    foreign = apply_overrides(one.config, {"agent": {"lr": 0.5}})
    finished_run(one.run_dir.parent.with_name("something else") / "seed1", foreign, 9.0)
    assert wanted.find_tried() == [values]
    assert compute_mean_return(wanted.plan_trial(values)) == 7.5
    with pytest.raises(ValueError, match="a run with other settings: schedule"):
        replace(wanted, set={**wanted.set, "schedule.frames": 500}).find_tried()


def test_chosen_numbers_can_be_written_down_and_stay_inside() -> None:
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
def test_a_search_that_is_wrong_is_refused_before_anything_begins(tmp_path: Path, search: str, error: str) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        sweep(tmp_path, search).plan_runs()


def test_the_search_of_the_docs_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "sweeps.md").read_text()
    (tmp_path / "search.toml").write_text(page.split("```toml\n")[2].split("```")[0])
    wanted = read_sweep(tmp_path / "search.toml")
    assert wanted.search is not None
    assert wanted.plan_runs() == []
    values = {"bonus.beta0": 0.0312, "bonus.k": 4, "bonus.entropy": "joint"}
    assert f"`{format_directory_name(values)}`" in page


@pytest.mark.long
@pytest.mark.quality("L7")
@pytest.mark.xdist_group("ray")
def test_optuna_searches_on_and_is_done_when_it_is_done(tmp_path: Path) -> None:
    """Two trials by one command, a third by the next one, and nothing by the one after that."""

    def searched(trials: int) -> str:
        sweep(tmp_path, SEARCH.replace("trials = 3", f"trials = {trials}"))
        command = [sys.executable, "-m", "manyview", "sweep", "search.toml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert searched(2).count(": started") == 2
    third = searched(3)
    assert third.count(": started") == 1
    assert len(re.findall(r"^ +-?\d+\.\d  agent.lr=", third, flags=re.M)) == 3
    assert "started" not in searched(3)


def test_a_search_needs_its_table() -> None:
    with pytest.raises(ValueError, match="expected only `trials`"):
        parse_search({"trials": 3, "fields": {"a": [1]}, "more": 1})
