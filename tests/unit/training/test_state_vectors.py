"""Runs with state vectors: exact resume, evaluation, and validation of names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.run_comparison import compare_trees
from manyview.envs import make
from manyview.training import factory
from manyview.training.evaluation import evaluate_policy
from manyview.training.preprocessing import prepare_observation, to_vectors
from manyview.training.runner import make_trainer
from manyview.utils.seeding import derive_seed
from tests.support.checkpoints import train_and_resume
from tests.support.runs import make_short_config, make_short_rollout_config

STATE_SETTINGS: dict[str, Any] = {"state": ["clock", "goal"], "state_stack": 2}
TASK = "toy/told_goal_continuous"


@pytest.mark.parametrize("method", ["drqv2+mem", "sac+mem", "drqv2+curl+re3"])
def test_a_trainer_with_vectors_resumes_bit_for_bit(tmp_path: Path, method: str) -> None:
    """The checkpoint is within an episode, and the replay buffer has wrapped around."""
    trainer, resumed = train_and_resume(
        make_short_config(method, task=TASK, env=STATE_SETTINGS, replay={"capacity": 40}), tmp_path, steps=57
    )
    for _ in range(30):
        trainer.advance()
        resumed.advance()
    assert trainer.agent.vector_encoder is not None
    assert trainer.agent.vector_encoder.normalizer.count > 0
    assert compare_trees(trainer.get_state(), resumed.get_state()) == []
    assert trainer.replay.steps.tobytes() == resumed.replay.steps.tobytes()
    for each_trainer in (trainer, resumed):
        each_trainer.close()


def test_rollouts_with_vectors_resume_bit_for_bit() -> None:
    config = make_short_rollout_config("ppo+mem", task="toy/told_goal", env=STATE_SETTINGS)
    trainer, resumed = make_trainer(config), make_trainer(config)
    while trainer.counters.rollouts < 2:
        trainer.advance()
    resumed.load_state(trainer.get_state(), lambda: None)
    for each_trainer in (trainer, resumed):
        while each_trainer.counters.rollouts < 4:
            each_trainer.advance()
    assert compare_trees(trainer.get_state(), resumed.get_state()) == []
    for each_trainer in (trainer, resumed):
        each_trainer.close()


def test_the_policy_sees_the_same_vectors_in_training_and_evaluation() -> None:
    """The replay buffer and the evaluation environment stack in the order of `env.state`."""
    config = make_short_config("drqv2+none", task=TASK, env=STATE_SETTINGS)
    trainer, env = make_trainer(config), factory.make_env(config)
    shapes = trainer.shapes
    assert [vector.name for vector in shapes.state_vectors] == ["clock", "goal"]
    assert shapes.vector_size == 6
    collector = trainer.collector  # type: ignore[attr-defined]
    observation, _ = env.reset(seed=derive_seed(config.seed, "episode", 0))
    for _ in range(5):
        _, _, training_vectors = collector.replay.get_observation()
        _, _, evaluation_vectors = prepare_observation(observation, shapes, torch.device("cpu"), episode=0)
        np.testing.assert_array_equal(training_vectors, evaluation_vectors)
        action = collector._select_action()
        observation, *_ = env.step(action)
        collector.step()
    clock = training_vectors[0].reshape(2, 3)[:, :2].tolist()
    assert clock == [[3.0, 7.0], [4.0, 6.0]]  # oldest first
    env.close()
    trainer.close()


def test_evaluations_freeze_the_statistics() -> None:
    config = make_short_config("drqv2+none", task=TASK, env=STATE_SETTINGS)
    trainer, env = make_trainer(config), factory.make_env(config)
    for _ in range(40):
        trainer.advance()
    before = trainer.agent.get_state()
    evaluate_policy(trainer.agent, env, trainer.shapes, episodes=2, seed=0, step=0, video_steps=3)
    assert compare_trees(before, trainer.agent.get_state()) == []
    env.close()
    trainer.close()


def test_tasks_have_no_vectors_by_default_and_list_them_for_unknown_names() -> None:
    assert make_trainer(make_short_config("drqv2+none", task=TASK)).shapes.state_vectors == ()
    with pytest.raises(
        ValueError, match=r"unknown state of toy/told_goal: expected each once of goal, clock, got joints"
    ):
        make("toy/told_goal", state=["joints"])
    with pytest.raises(ValueError, match="offers no state vectors"):
        make("toy/cue", state=["goal"])
    with pytest.raises(ValueError, match="expected each once"):
        make("toy/told_goal", state=["goal", "goal"])
    with pytest.raises(ValueError, match="expected a sequence of names"):
        make("toy/told_goal", state="goal")


def test_a_stack_of_no_vectors_is_refused() -> None:
    with pytest.raises(ValueError, match=r"env\.state_stack: expected 1 without state vectors, got 2"):
        make_trainer(make_short_config("drqv2+none", task=TASK, env={"state_stack": 2}))


def test_vectors_of_several_environments_are_rows() -> None:
    config = make_short_rollout_config("ppo+none", task="toy/told_goal", env={"state": ["goal", "clock"]})
    trainer = make_trainer(config)
    observation, _ = trainer.env.reset(seed=0)
    vectors = to_vectors(observation, trainer.shapes, torch.device("cpu"))
    assert vectors is not None
    assert vectors.shape == (4, 3)
    assert vectors[:, 0].tolist() == observation["goal"][:, 0].tolist()
    assert vectors[:, 1:].tolist() == [[0.0, 10.0]] * 4
    trainer.close()
