"""Runs that live on: extended, and started from the weights of another."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.run_comparison import compare_runs
from manyview.nn.module_state import find_differences
from manyview.training import RunConfig, RunDir, run
from manyview.training.checkpoint import load_newest_checkpoint
from manyview.training.resume import RunFinishedError, extend_run
from manyview.training.runner import Runner
from tests.support.runners import abandon_runner, advance_to
from tests.support.runs import make_short_config, make_short_rollout_config


def with_length(config: RunConfig, frames: int) -> RunConfig:
    return replace(config, schedule=replace(config.schedule, frames=frames))


def load_agent(run_dir: RunDir) -> Any:
    return load_newest_checkpoint(run_dir.checkpoints_dir)[1].state["agent"]


@pytest.mark.parametrize(
    "config",
    [make_short_config(), make_short_config("sac+re3"), make_short_rollout_config()],
    ids=lambda run: run.method,
)
def test_an_extended_run_is_the_one_that_had_this_length_from_the_start(tmp_path: Path, config: RunConfig) -> None:
    whole, folder, frames = RunDir(tmp_path / "whole"), RunDir(tmp_path / "run"), config.schedule.frames
    run(with_length(config, 2 * frames), whole)
    run(config, folder)
    longer = extend_run(folder, 2 * frames)
    assert "finished" not in folder.read_manifest()
    assert folder.read_config() == longer
    assert run(longer, folder)
    assert "finished" in folder.read_manifest()
    assert compare_runs(whole, folder) == []


def test_a_run_that_is_killed_while_it_is_extended_goes_on(tmp_path: Path) -> None:
    config, whole, folder = make_short_config(), RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    run(with_length(config, 120), whole)
    run(config, folder)
    extend_run(folder, 120)
    session = Runner(folder.read_config(), folder)
    advance_to(session, 75)
    abandon_runner(session)
    assert run(folder.read_config(), folder)
    assert compare_runs(whole, folder) == []


def test_a_kill_between_manifest_and_config_leaves_a_run_that_finishes_at_its_old_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = make_short_config(), RunDir(tmp_path / "run")
    run(config, folder)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "write_config", die)
        with pytest.raises(KeyboardInterrupt):
            extend_run(folder, 120)
    assert run(folder.read_config(), folder)
    assert folder.is_finished
    assert run(extend_run(folder, 90), folder)


def test_a_stopped_run_can_be_extended(tmp_path: Path) -> None:
    config, whole, folder = make_short_config(), RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    run(with_length(config, 90), whole)
    session = Runner(config, folder)
    advance_to(session, 45)
    abandon_runner(session)
    assert run(extend_run(folder, 90), folder)
    assert compare_runs(whole, folder) == []


def test_a_run_is_not_shortened(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    run(make_short_config(), folder)
    with pytest.raises(ValueError, match="has a length of 60 frames: expected a new total above that, got 60"):
        extend_run(folder, 60)
    assert folder.is_finished


def test_a_run_without_its_replay_buffer_is_not_extended(tmp_path: Path) -> None:
    config, folder = make_short_config(logging={"keep_replay": False}), RunDir(tmp_path / "run")
    run(config, folder)
    with pytest.raises(ValueError, match=r"removed its replay buffer: .* `manyview train \S+ --from"):
        extend_run(folder, 120)
    with pytest.raises(RunFinishedError, match=r"has finished at 60 frames. Train on with `manyview extend"):
        run(config, folder)


def test_a_run_that_another_process_trains_is_not_extended(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    run(make_short_config(), folder)
    with folder.lock(), pytest.raises(FileExistsError, match="another process is training"):
        extend_run(folder, 120)
    assert folder.is_finished


def test_another_length_is_named_as_what_it_is(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    run(make_short_config(), folder)
    with pytest.raises(ValueError, match=r"schedule.frames was 60, now 90. Train on with `manyview extend`"):
        run(with_length(make_short_config(), 90), folder)
    with pytest.raises(ValueError, match=r"schedule.frames was 60, now 30. Resume with the same settings"):
        run(with_length(make_short_config(), 30), folder)


@pytest.mark.parametrize("make_config", [make_short_config, make_short_rollout_config])
def test_a_run_can_start_from_the_weights_of_another(tmp_path: Path, make_config: Callable[..., RunConfig]) -> None:
    first, second = RunDir(tmp_path / "first"), RunDir(tmp_path / "second")
    run(make_config(), first)
    config = make_config(seed=2, schedule={"initial_run": str(first.path)})
    session = Runner(config, second)
    for state in (session.trainer.agent.get_state(), session.trainer.get_state()["agent"]):  # also what is saved
        assert find_differences({**state, "generators": {}}, {**load_agent(first), "generators": {}}) == []
        for name, generator in state["generators"].items():  # two seeds explore differently
            assert not torch.equal(generator, load_agent(first)["generators"][name])
    assert session.trainer.counters.frames == 0
    advance_to(session, 45)
    abandon_runner(session)
    first.path.rename(tmp_path / "moved")
    assert run(config, second), "its own checkpoints are enough from then on"


def test_running_returns_and_their_number_are_not_those_of_the_other_run(tmp_path: Path) -> None:
    first, second = RunDir(tmp_path / "first"), RunDir(tmp_path / "second")
    run(make_short_rollout_config("ppo+mem", agent={"normalize_rewards": True}), first)
    changes: dict[str, Any] = {"agent": {"normalize_rewards": True}, "rollout": {"envs": 3}}
    config = make_short_rollout_config("ppo+mem", schedule={"initial_run": str(first.path)}, **changes)
    with Runner(config, second) as session:
        tensors = session.trainer.get_state()["agent"]["tensors"]
    assert tensors["bonus_returns.returns"].tolist() == tensors["reward_normalizer.returns"].tolist() == [0.0] * 3


@pytest.mark.parametrize("method", ["sac+re3", "sac+dribo"])
def test_the_first_observation_is_that_of_the_loaded_agent(tmp_path: Path, method: str) -> None:
    """RE3 stores its features; DRIBO's memory starts at zero."""
    first, second = RunDir(tmp_path / "first"), RunDir(tmp_path / "second")
    run(make_short_config(method), first)
    with Runner(make_short_config(method, seed=2, schedule={"initial_run": str(first.path)}), second) as session:
        trainer: Any = session.trainer
        assert all((buffer == 0).all() for buffer in trainer.agent.memory.buffers())
        replay = trainer.replay
        if replay.features is not None:
            np.testing.assert_array_equal(
                replay.features[0], trainer.collector._compute_features(*replay.stack_frames(np.array([0])))[0]
            )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"agent": {"hidden": 8}}, "does not fit this run"),
        ({"scale": {"actors": 1, "learners": 2}}, "scale.learners=1"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    first, second = RunDir(tmp_path / "first"), RunDir(tmp_path / "second")
    run(make_short_config(), first)
    with pytest.raises(ValueError, match=says):
        Runner(make_short_config(schedule={"initial_run": str(first.path)}, **changes), second)
    assert not second.has_run


def test_weights_of_a_directory_without_a_run_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"schedule.initial_run: .*nowhere holds no run: expected config.json in it"):
        Runner(make_short_config(schedule={"initial_run": str(tmp_path / "nowhere")}), RunDir(tmp_path / "second"))
    assert not (tmp_path / "second" / "config.json").exists()
