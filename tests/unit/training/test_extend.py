"""Extended runs, and runs that start from the weights of another run."""

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


def change_length(config: RunConfig, frames: int) -> RunConfig:
    """Return the run config with another length."""
    return replace(config, schedule=replace(config.schedule, frames=frames))


def load_agent(run_dir: RunDir) -> Any:
    """Return the agent state of the newest checkpoint."""
    return load_newest_checkpoint(run_dir.checkpoints_dir)[1].state["agent"]


@pytest.mark.parametrize(
    "config",
    [make_short_config(), make_short_config("sac+re3"), make_short_rollout_config()],
    ids=lambda config: config.method,
)
def test_an_extended_run_equals_a_run_of_its_length(tmp_path: Path, config: RunConfig) -> None:
    reference_dir, run_dir, frames = RunDir(tmp_path / "whole"), RunDir(tmp_path / "run"), config.schedule.frames
    run(change_length(config, 2 * frames), reference_dir)
    run(config, run_dir)
    extended_config = extend_run(run_dir, 2 * frames)
    assert "finished" not in run_dir.read_manifest()
    assert run_dir.read_config() == extended_config
    assert run(extended_config, run_dir)
    assert "finished" in run_dir.read_manifest()
    assert compare_runs(reference_dir, run_dir) == []


def test_an_extended_run_resumes_after_a_kill(tmp_path: Path) -> None:
    config, reference_dir, run_dir = make_short_config(), RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    run(change_length(config, 120), reference_dir)
    run(config, run_dir)
    extend_run(run_dir, 120)
    runner = Runner(run_dir.read_config(), run_dir)
    advance_to(runner, 75)
    abandon_runner(runner)
    assert run(run_dir.read_config(), run_dir)
    assert compare_runs(reference_dir, run_dir) == []


def test_a_kill_between_manifest_and_config_leaves_a_run_that_finishes_at_its_old_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run_dir = make_short_config(), RunDir(tmp_path / "run")
    run(config, run_dir)

    def raise_interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "write_config", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            extend_run(run_dir, 120)
    assert run(run_dir.read_config(), run_dir)
    assert run_dir.is_finished
    assert run(extend_run(run_dir, 90), run_dir)


def test_a_stopped_run_can_be_extended(tmp_path: Path) -> None:
    config, reference_dir, run_dir = make_short_config(), RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    run(change_length(config, 90), reference_dir)
    runner = Runner(config, run_dir)
    advance_to(runner, 45)
    abandon_runner(runner)
    assert run(extend_run(run_dir, 90), run_dir)
    assert compare_runs(reference_dir, run_dir) == []


def test_a_run_is_not_shortened(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run(make_short_config(), run_dir)
    with pytest.raises(ValueError, match="has a length of 60 frames: expected a new total above that, got 60"):
        extend_run(run_dir, 60)
    assert run_dir.is_finished


def test_a_run_without_its_replay_buffer_is_not_extended(tmp_path: Path) -> None:
    config, run_dir = make_short_config(logging={"keep_replay": False}), RunDir(tmp_path / "run")
    run(config, run_dir)
    with pytest.raises(ValueError, match=r"removed its replay buffer: .* `manyview train \S+ --from"):
        extend_run(run_dir, 120)
    with pytest.raises(RunFinishedError, match=r"has finished at 60 frames. Train on with `manyview extend"):
        run(config, run_dir)


def test_a_run_that_another_process_trains_is_not_extended(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run(make_short_config(), run_dir)
    with run_dir.lock(), pytest.raises(FileExistsError, match="another process is training"):
        extend_run(run_dir, 120)
    assert run_dir.is_finished


def test_the_error_of_a_longer_run_suggests_extend(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run(make_short_config(), run_dir)
    with pytest.raises(ValueError, match=r"schedule.frames was 60, now 90. Train on with `manyview extend`"):
        run(change_length(make_short_config(), 90), run_dir)
    with pytest.raises(ValueError, match=r"schedule.frames was 60, now 30. Resume with the same settings"):
        run(change_length(make_short_config(), 30), run_dir)


@pytest.mark.parametrize("make_config", [make_short_config, make_short_rollout_config])
def test_a_run_can_start_from_the_weights_of_another(tmp_path: Path, make_config: Callable[..., RunConfig]) -> None:
    source_dir, run_dir = RunDir(tmp_path / "first"), RunDir(tmp_path / "second")
    run(make_config(), source_dir)
    config = make_config(seed=2, schedule={"initial_run": str(source_dir.path)})
    runner = Runner(config, run_dir)
    for state in (runner.trainer.agent.get_state(), runner.trainer.get_state()["agent"]):  # and the state to save
        assert find_differences({**state, "generators": {}}, {**load_agent(source_dir), "generators": {}}) == []
        for name, generator in state["generators"].items():  # exploration depends on the seed
            assert not torch.equal(generator, load_agent(source_dir)["generators"][name])
    assert runner.trainer.counters.frames == 0
    advance_to(runner, 45)
    abandon_runner(runner)
    source_dir.path.rename(tmp_path / "moved")
    assert run(config, run_dir), "its own checkpoints are enough from then on"


def test_running_returns_are_not_loaded_from_the_other_run(tmp_path: Path) -> None:
    source_dir, run_dir = RunDir(tmp_path / "first"), RunDir(tmp_path / "second")
    run(make_short_rollout_config("ppo+mem", agent={"normalize_rewards": True}), source_dir)
    changes: dict[str, Any] = {"agent": {"normalize_rewards": True}, "rollout": {"envs": 3}}
    config = make_short_rollout_config("ppo+mem", schedule={"initial_run": str(source_dir.path)}, **changes)
    with Runner(config, run_dir) as runner:
        tensors = runner.trainer.get_state()["agent"]["tensors"]
    assert tensors["bonus_returns.returns"].tolist() == tensors["reward_normalizer.returns"].tolist() == [0.0] * 3


@pytest.mark.parametrize("method", ["sac+re3", "sac+dribo"])
def test_the_first_observation_is_processed_by_the_loaded_agent(tmp_path: Path, method: str) -> None:
    """RE3 stores its features; DRIBO's memory starts at zero."""
    source_dir, run_dir = RunDir(tmp_path / "first"), RunDir(tmp_path / "second")
    run(make_short_config(method), source_dir)
    with Runner(make_short_config(method, seed=2, schedule={"initial_run": str(source_dir.path)}), run_dir) as runner:
        trainer: Any = runner.trainer
        assert all((buffer == 0).all() for buffer in trainer.agent.memory.buffers())
        replay = trainer.replay
        if replay.features is not None:
            np.testing.assert_array_equal(
                replay.features[0], trainer.collector._compute_features(*replay.stack_frames(np.array([0])))[0]
            )


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"agent": {"hidden": 8}}, "does not fit this run"),
        ({"scale": {"actors": 1, "learners": 2}}, "scale.learners=1"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], error: str) -> None:
    source_dir, run_dir = RunDir(tmp_path / "first"), RunDir(tmp_path / "second")
    run(make_short_config(), source_dir)
    with pytest.raises(ValueError, match=error):
        Runner(make_short_config(schedule={"initial_run": str(source_dir.path)}, **changes), run_dir)
    assert not run_dir.has_run


def test_weights_of_a_directory_without_a_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"schedule.initial_run: .*nowhere holds no run: expected config.json in it"):
        Runner(make_short_config(schedule={"initial_run": str(tmp_path / "nowhere")}), RunDir(tmp_path / "second"))
    assert not (tmp_path / "second" / "config.json").exists()
