"""Categorical and Gaussian policies against the distributions of torch."""

import torch

from manyview.agents.distributions import Categorical, Gaussian
from manyview.data.action_spec import ActionSpec
from manyview.utils.counter_rng import derive_keys

KEY = derive_keys(4, torch.arange(50_000))


def test_a_categorical_policy_equals_that_of_torch() -> None:
    logits = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    policy, oracle = Categorical(logits), torch.distributions.Categorical(logits=logits)
    action = policy.sample(KEY[:20])
    assert torch.allclose(policy.log_prob(action), oracle.log_prob(action), atol=1e-6)
    assert torch.allclose(policy.entropy(), oracle.entropy(), atol=1e-6)
    assert torch.equal(policy.mode(), logits.argmax(1))


def test_actions_are_sampled_with_their_probabilities() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0])
    actions = Categorical(logits.expand(len(KEY), -1)).sample(KEY)
    frequencies = torch.bincount(actions, minlength=4) / len(KEY)
    assert (frequencies - logits.softmax(0)).abs().max() < 0.01


def test_a_gaussian_policy_equals_that_of_torch() -> None:
    mean, log_std = torch.randn(len(KEY), 2, generator=torch.Generator().manual_seed(0)), torch.tensor([-1.0, 0.3])
    policy = Gaussian(mean, log_std)
    oracle = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp().expand_as(mean)), 1)
    action = policy.sample(KEY)
    assert torch.allclose(policy.log_prob(action), oracle.log_prob(action), atol=1e-4)
    assert torch.allclose(policy.entropy(), oracle.entropy(), atol=1e-5)
    assert torch.allclose((action - mean).std(0), log_std.exp(), rtol=0.02)


def test_actions_for_an_environment_are_within_its_bounds() -> None:
    actions = ActionSpec(2, discrete=False).to_env(torch.tensor([[-3.0, 0.5], [0.2, 9.0]]))
    assert actions.tolist() == [[-1.0, 0.5], [0.20000000298023224, 1.0]]
    assert ActionSpec(5, discrete=True).to_env(torch.tensor([3, 4])).tolist() == [3, 4]
