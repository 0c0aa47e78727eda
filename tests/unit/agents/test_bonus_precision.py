"""Under bfloat16 autocast, r̂ and the networks of a bonus compute in float32."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from manyview.training import OffPolicyTrainer, make_trainer
from tests.support.batches import make_agent, make_batch
from tests.support.runs import make_short_config, make_short_rollout_config

OWN_NETWORKS = ["re3", "rnd", "apt", "pixel+mem"]


@pytest.mark.parametrize("method", OWN_NETWORKS)
def test_a_bonus_with_its_own_networks_pays_and_learns_as_in_float32(method: str) -> None:
    results = []
    for is_enabled in (False, True):
        learner, data = make_agent("sac", method), make_batch()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_enabled):
            encoded = learner.encode_batch(data)
            paid = learner.compute_bonus(data, encoded, torch.zeros(2, len(data.mask)))
            metrics = learner.update_bonus(data)
            shown = learner.eval().reward_states(data.views, data.mask)
        assert shown is not None
        results.append([encoded.features.state, paid, shown, *metrics.values()])
    assert paid.std() > 0
    (state, *expected), (rounded_state, *found) = results
    assert not state.equal(rounded_state), "the policy's encoder computes in bfloat16"
    assert all(map(torch.equal, expected, found))


def test_stored_features_are_those_of_float32() -> None:
    learner: Any = make_agent("sac", "re3", bonus_changes={"search": "buffer"})
    data = make_batch()
    expected = learner.compute_stored_features(data.views, data.mask)
    with torch.autocast("cpu", torch.bfloat16):
        assert learner.compute_stored_features(data.views, data.mask).equal(expected)


@pytest.mark.parametrize("method", ["ppo+ride", "ppo+icm"])
def test_a_rollout_is_rewarded_as_in_float32(method: str) -> None:
    trainer: Any = make_trainer(make_short_rollout_config(method))
    while not trainer.num_pending_updates:
        trainer.advance()
    expected = trainer.agent.compute_bonus(trainer.rollout)
    with torch.autocast("cpu", torch.bfloat16):
        found = trainer.agent.compute_bonus(trainer.rollout)
    trainer.close()
    assert expected.std() > 0
    assert found.equal(expected)


def test_diagnostics_see_the_policys_features_as_rounded_as_the_bonus_is_paid_on_them() -> None:
    replay, bonus = {"augmentation": "none"}, {"bank": 0, "reward_frames": "augmented"}
    trainer = OffPolicyTrainer(
        make_short_config("sac+mem", replay=replay, bonus=bonus, compute={"precision": "bfloat16"})
    )
    while trainer.advance().metrics is None:
        pass
    shown, data = trainer.compute_diagnostics(), trainer.last_batch
    learner: Any = deepcopy(trainer.agent)
    trainer.close()
    assert data is not None
    means = []
    for is_enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_enabled), torch.no_grad():
            features = learner.representation.encode(data.views, data.mask)
        means.append(learner.bonus.entropy.evaluate_reward(features, indices=data.indices)[0].mean().item())
    assert shown["reward_mean"] == means[1] != means[0]
