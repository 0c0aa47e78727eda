"""GAE against its definition and TorchRL, and reward normalization against numpy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from manyview.agents.advantages import RewardNormalizer, gae

STEPS, ENVS, DISCOUNT, GAE_LAMBDA = 40, 6, 0.97, 0.9


def make_rollout(seed: int = 0) -> dict[str, Tensor]:
    """Return a random rollout as the arguments of `gae`, each [T, E]."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(3, STEPS, ENVS, generator=generator)
    return {
        "reward": numbers[0],
        "value": numbers[1],
        "next_value": numbers[2],
        "done": torch.rand(STEPS, ENVS, generator=generator) < 0.15,
    }


def test_advantages_are_the_sum_of_their_definition() -> None:
    rollout = make_rollout()
    advantages = gae(**rollout, discount=DISCOUNT, gae_lambda=GAE_LAMBDA)
    for env in range(ENVS):
        for step in range(STEPS):
            expected, weight = 0.0, 1.0
            for later in range(step, STEPS):
                delta = (
                    rollout["reward"][later, env]
                    + DISCOUNT * rollout["next_value"][later, env]
                    - rollout["value"][later, env]
                )
                expected += weight * float(delta)
                weight *= DISCOUNT * GAE_LAMBDA
                if rollout["done"][later, env]:
                    break
            assert float(advantages[step, env]) == pytest.approx(expected, abs=1e-4)


def test_lambda_0_gives_td_errors_and_lambda_1_returns_minus_values() -> None:
    rollout = make_rollout()
    td_errors = rollout["reward"] + DISCOUNT * rollout["next_value"] - rollout["value"]
    assert torch.allclose(gae(**rollout, discount=DISCOUNT, gae_lambda=0.0), td_errors)
    rollout["next_value"] = torch.cat([rollout["value"][1:], torch.zeros(1, ENVS)])
    rollout["done"][:] = False
    returns = torch.zeros(ENVS)
    for reward in rollout["reward"].flip(0):
        returns = reward + DISCOUNT * returns
    assert torch.allclose(
        gae(**rollout, discount=DISCOUNT, gae_lambda=1.0)[0], returns - rollout["value"][0], atol=1e-5
    )


def test_advantages_are_those_of_torchrl() -> None:
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    rollout = make_rollout(1)
    terminated = rollout["done"] & (torch.rand(STEPS, ENVS, generator=torch.Generator().manual_seed(9)) < 0.5)
    columns = {name: tensor.T.unsqueeze(-1) for name, tensor in rollout.items()}  # [E, T, 1]
    expected, _ = generalized_advantage_estimate(
        DISCOUNT,
        GAE_LAMBDA,
        columns["value"],
        columns["next_value"],
        columns["reward"],
        columns["done"],
        terminated.T.unsqueeze(-1),
    )
    rollout["next_value"] = torch.where(terminated, 0.0, rollout["next_value"])
    assert torch.allclose(gae(**rollout, discount=DISCOUNT, gae_lambda=GAE_LAMBDA), expected.squeeze(-1).T, atol=1e-5)


def test_rewards_are_divided_by_the_std_of_all_discounted_returns_so_far() -> None:
    normalizer, returns, all_returns = RewardNormalizer(ENVS, discount=DISCOUNT), np.zeros(ENVS), []
    for seed in range(4):
        rollout = make_rollout(seed)
        reward, done = 5 * rollout["reward"] + 2, rollout["done"]
        for reward_row, done_row in zip(reward.double().numpy(), done.numpy(), strict=True):
            returns = DISCOUNT * returns + reward_row
            all_returns.append(returns)
            returns = np.where(done_row, 0.0, returns)
        expected = (reward.numpy() / np.std(all_returns)).clip(-10, 10)
        assert np.allclose(normalizer(reward, done).numpy(), expected, rtol=1e-4)


def test_rewards_that_are_always_zero_stay_zero() -> None:
    normalizer = RewardNormalizer(ENVS, discount=DISCOUNT)
    zeros = torch.zeros(STEPS, ENVS)
    assert not normalizer(zeros, zeros.bool()).any()
