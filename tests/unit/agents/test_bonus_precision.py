"""Under bfloat16 autocast, r̂ and the networks of a bonus compute in float32."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from manyview.training import OffPolicyTrainer, make_trainer
from tests.support.batches import make_agent, make_batch
from tests.support.runs import make_short_config, make_short_rollout_config

METHODS = ["re3", "rnd", "apt", "pixel+mem"]


@pytest.mark.parametrize("method", METHODS)
def test_a_bonus_with_its_own_networks_computes_and_learns_as_in_float32(method: str) -> None:
    results = []
    for is_enabled in (False, True):
        agent, data = make_agent("sac", method), make_batch()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_enabled):
            encoded = agent.encode_batch(data)
            bonus = agent.compute_bonus(data, encoded, torch.zeros(2, len(data.mask)))
            metrics = agent.update_bonus(data)
            rewards = agent.eval().reward_states(data.views, data.mask)
        assert rewards is not None
        results.append([encoded.features.state, bonus, rewards, *metrics.values()])
    assert bonus.std() > 0
    (state, *expected), (rounded_state, *rounded) = results
    assert not state.equal(rounded_state), "the policy's encoder computes in bfloat16"
    assert all(map(torch.equal, expected, rounded))


def test_stored_features_are_those_of_float32() -> None:
    agent: Any = make_agent("sac", "re3", bonus_changes={"search": "buffer"})
    data = make_batch()
    expected = agent.compute_stored_features(data.views, data.mask)
    with torch.autocast("cpu", torch.bfloat16):
        assert agent.compute_stored_features(data.views, data.mask).equal(expected)


@pytest.mark.parametrize("method", ["ppo+ride", "ppo+icm"])
def test_a_rollout_is_rewarded_as_in_float32(method: str) -> None:
    trainer: Any = make_trainer(make_short_rollout_config(method))
    while not trainer.num_pending_updates:
        trainer.advance()
    expected = trainer.agent.compute_bonus(trainer.rollout)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = trainer.agent.compute_bonus(trainer.rollout)
    trainer.close()
    assert expected.std() > 0
    assert rounded.equal(expected)


def test_diagnostics_use_the_rounded_features_that_the_bonus_uses() -> None:
    replay, bonus = {"augmentation": "none"}, {"bank": 0, "reward_frames": "augmented"}
    trainer = OffPolicyTrainer(
        make_short_config("sac+mem", replay=replay, bonus=bonus, compute={"precision": "bfloat16"})
    )
    while trainer.advance().metrics is None:
        pass
    diagnostics, data = trainer.compute_diagnostics(), trainer.last_batch
    agent: Any = deepcopy(trainer.agent)
    trainer.close()
    assert data is not None
    means = []
    for is_enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_enabled), torch.no_grad():
            features = agent.representation.encode(data.views, data.mask)
        means.append(agent.bonus.entropy.evaluate_reward(features, indices=data.indices)[0].mean().item())
    assert diagnostics["reward_mean"] == means[1] != means[0]
