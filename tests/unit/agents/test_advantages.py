"""GAE against its definition and TorchRL, and the scale of returns against numpy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from manyview.agents.advantages import RewardNormalizer, gae

STEPS, ENVS, DISCOUNT, DECAY = 40, 6, 0.97, 0.9


def drawn(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(3, STEPS, ENVS, generator=generator)
    return {
        "reward": numbers[0],
        "value": numbers[1],
        "next_value": numbers[2],
        "done": torch.rand(STEPS, ENVS, generator=generator) < 0.15,
    }


def test_advantages_are_the_sum_of_their_definition() -> None:
    of = drawn()
    found = gae(**of, discount=DISCOUNT, gae_lambda=DECAY)
    for env in range(ENVS):
        for step in range(STEPS):
            expected, weight = 0.0, 1.0
            for later in range(step, STEPS):
                delta = of["reward"][later, env] + DISCOUNT * of["next_value"][later, env] - of["value"][later, env]
                expected += weight * float(delta)
                weight *= DISCOUNT * DECAY
                if of["done"][later, env]:
                    break
            assert float(found[step, env]) == pytest.approx(expected, abs=1e-4)


def test_without_decay_an_advantage_is_one_error_and_with_all_of_it_the_return_less_the_value() -> None:
    of = drawn()
    errors = of["reward"] + DISCOUNT * of["next_value"] - of["value"]
    assert torch.allclose(gae(**of, discount=DISCOUNT, gae_lambda=0.0), errors)
    of["next_value"] = torch.cat([of["value"][1:], torch.zeros(1, ENVS)])
    of["done"][:] = False
    sums = torch.zeros(ENVS)
    for reward in of["reward"].flip(0):
        sums = reward + DISCOUNT * sums
    assert torch.allclose(gae(**of, discount=DISCOUNT, gae_lambda=1.0)[0], sums - of["value"][0], atol=1e-5)


def test_advantages_are_those_of_torchrl() -> None:
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    of = drawn(1)
    terminated = of["done"] & (torch.rand(STEPS, ENVS, generator=torch.Generator().manual_seed(9)) < 0.5)
    columns = {name: tensor.T.unsqueeze(-1) for name, tensor in of.items()}  # [E, T, 1]
    expected, _ = generalized_advantage_estimate(
        DISCOUNT,
        DECAY,
        columns["value"],
        columns["next_value"],
        columns["reward"],
        columns["done"],
        terminated.T.unsqueeze(-1),
    )
    of["next_value"] = torch.where(terminated, 0.0, of["next_value"])
    assert torch.allclose(gae(**of, discount=DISCOUNT, gae_lambda=DECAY), expected.squeeze(-1).T, atol=1e-5)


def test_rewards_are_divided_by_the_deviation_of_all_discounted_sums_so_far() -> None:
    scale, sums, seen = RewardNormalizer(ENVS, discount=DISCOUNT), np.zeros(ENVS), []
    for part in range(4):
        of = drawn(part)
        reward, ended = 5 * of["reward"] + 2, of["done"]
        for row, ends in zip(reward.double().numpy(), ended.numpy(), strict=True):
            sums = DISCOUNT * sums + row
            seen.append(sums)
            sums = np.where(ends, 0.0, sums)
        expected = (reward.numpy() / np.std(seen)).clip(-10, 10)
        assert np.allclose(scale(reward, ended).numpy(), expected, rtol=1e-4)


def test_rewards_that_are_always_zero_stay_zero() -> None:
    scale = RewardNormalizer(ENVS, discount=DISCOUNT)
    nothing = torch.zeros(STEPS, ENVS)
    assert not scale(nothing, nothing.bool()).any()
