"""State vectors as a term of MEM's bonus, against loops."""

from typing import Any

import numpy as np
import pytest
import torch

from manyview.methods import MEMBonusConfig
from manyview.training import factory
from manyview.training.evaluation import evaluate_policy
from manyview.training.runner import make_trainer
from manyview.utils.validation import SettingError
from tests.support.runs import make_short_config, make_short_rollout_config

STATE_SETTINGS: dict[str, Any] = {"env": {"state": ["goal", "clock"]}}
BONUS_SETTINGS: dict[str, Any] = {**STATE_SETTINGS, "bonus": {"include_state": True, "k": 2}}


def compute_kth_distances(rows: np.ndarray[Any, Any], k: int) -> list[float]:
    """Return the distance of each row to its k-th nearest other row."""
    return [
        float(sorted(np.linalg.norm(row - other) for j, other in enumerate(rows) if j != i)[k - 1])
        for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize("method", ["drqv2+mem", "drqv2+pixel+mem"])
def test_the_vector_is_one_more_term_of_the_mean(method: str) -> None:
    trainer: Any = make_trainer(make_short_config(method, task="toy/told_goal_continuous", **BONUS_SETTINGS))
    while trainer.counters.updates < 2:
        trainer.advance()
    bonus, batch = trainer.agent.bonus, trainer.last_batch
    # Rows that are the same step are no neighbors of each other.
    is_first = torch.tensor(
        [batch.indices.tolist().index(index) == row for row, index in enumerate(batch.indices.tolist())]
    )
    batch = batch.map(lambda part: part[is_first])
    features, normalizer, moments = (
        bonus.encode(batch.views, batch.mask),
        bonus.vector_normalizer,
        bonus.entropy.distance_moments,
    )
    bonus.eval()
    actual = bonus.compute(batch, features, torch.zeros(len(batch.mask)))
    vectors = ((batch.vectors - normalizer.mean) / normalizer.std.clamp(min=1e-6)).numpy()
    groups = [*(part.numpy() for part in features.terms.detach().unbind(1)), vectors]
    distances = torch.tensor([compute_kth_distances(group, 2) for group in groups])  # of one view, x̄ and the vector
    assert len(moments.mean) == len(distances) == 3
    scale = moments.mean[:, None] if bonus.config.distance_scale == "relative" else 1.0
    unscaled = (distances / scale).log1p().mean(0)
    expected = bonus.entropy.reward_moments.scale_reward(unscaled, bonus.config.reward_scale)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
    trainer.close()


def test_rollouts_compare_vectors_within_each_environment() -> None:
    trainer: Any = make_trainer(make_short_rollout_config("ppo+mem", task="toy/told_goal", **BONUS_SETTINGS))
    while not trainer.rollout.is_full:
        trainer.advance()
    bonus, rollout = trainer.agent.bonus, trainer.rollout
    bonus.eval()
    before = bonus.compute_rollout(rollout, rollout.features, window=None)
    original_vectors = rollout.vectors.clone()
    rollout.vectors[2, 1] += 50  # one step of one environment
    after = bonus.compute_rollout(rollout, rollout.features, window=None)
    has_changed = (after != before).any(0)
    assert has_changed.tolist() == [False, True, False, False]
    rollout.vectors.copy_(original_vectors)
    assert bonus.vector_normalizer.count == 20
    trainer.close()


def test_evaluations_and_diagnostics_use_the_vectors_and_change_nothing() -> None:
    trainer: Any = make_trainer(make_short_config("drqv2+mem", task="toy/told_goal_continuous", **BONUS_SETTINGS))
    while trainer.counters.updates < 3:
        trainer.advance()
    env, before = factory.make_env(trainer.config), trainer.agent.get_state()
    evaluation = evaluate_policy(trainer.agent, env, trainer.shapes, episodes=1, seed=0, step=0, video_steps=5)
    assert evaluation.recording is not None
    assert evaluation.recording.reward_int is not None
    assert len(evaluation.recording.reward_int) == 6
    assert "health" in trainer.compute_diagnostics()
    after = trainer.agent.get_state()
    assert all(before["tensors"][name].equal(part) for name, part in after["tensors"].items())
    env.close()
    trainer.close()


def test_without_the_option_the_bonus_does_not_use_the_vectors() -> None:
    trainer: Any = make_trainer(make_short_config("drqv2+mem", task="toy/told_goal_continuous", **STATE_SETTINGS))
    assert trainer.agent.bonus.vector_normalizer is None
    assert not any("normalizer" in name for name in trainer.agent.bonus.state_dict())
    trainer.close()


@pytest.mark.parametrize("changes", [{"search": "buffer"}, {"entropy": "joint"}, {"bank": 100}])
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="include_state"):
        MEMBonusConfig(include_state=True, **changes)


def test_an_observation_without_vectors_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bonus.include_state: expected state vectors, got none. Set env.state"):
        make_trainer(make_short_config("drqv2+mem", bonus={"include_state": True}))
