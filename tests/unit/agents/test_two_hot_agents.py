"""DrQ-v2 and SAC with `critic=two_hot`: loss, targets and the actor's gradient, computed by loops in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from manyview.agents.off_policy import MAX_ABS_VALUE, NUM_BINS
from manyview.nn.two_hot import TwoHot
from tests.support.batches import agent, batch

KINDS = pytest.mark.parametrize("kind", ["drqv2", "sac"])
BINS = [
    math.copysign(math.expm1(abs(value)), value)
    for value in (math.log1p(MAX_ABS_VALUE) * (2 * i / (NUM_BINS - 1) - 1) for i in range(NUM_BINS))
]


def make_learner(kind: str) -> Any:
    """Return an agent with noise 1, values away from 0, and target networks that differ from the online ones."""
    learner: Any = agent(kind, "none", shift_pixels=0, critic="two_hot")
    learner.sample_noise = torch.ones_like
    rng = torch.Generator().manual_seed(5)
    for network in (learner.critic, learner.target_critic):
        for head in network.heads:
            head[-1].weight.data = 0.3 * torch.randn(head[-1].weight.shape, generator=rng)
            head[-1].bias.data = 0.3 * torch.randn(head[-1].bias.shape, generator=rng)
    return learner


def decode(logits: Tensor) -> Tensor:
    """Return the expectations [B] over the bins of `logits` [B, N]."""
    weights = logits.double().exp()
    return (weights * torch.tensor(BINS, dtype=torch.float64)).sum(1) / weights.sum(1)


def predict(network: Any, state: Tensor, action: Tensor) -> list[Tensor]:
    inputs = torch.cat([state, action], 1)
    return [head(inputs) for head in network.heads]


def cross_entropy(logits: Tensor, target: float) -> float:
    """Return the cross-entropy of one row of logits [N] against the two bins around `target`."""
    upper = next(i for i, center in enumerate(BINS) if center > target)
    share = (target - BINS[upper - 1]) / (BINS[upper] - BINS[upper - 1])
    log_weights = logits.double() - logits.double().exp().sum().log()
    return float(-(1 - share) * log_weights[upper - 1] - share * log_weights[upper])


def sample_action(learner: Any, kind: str, state: Tensor, std: float = 0.3) -> tuple[Tensor, Tensor]:
    """Return actions and log-probabilities at noise 1, which DrQ-v2 clips to `std`."""
    outputs = learner.actor(state)
    if kind == "drqv2":
        action = outputs.tanh() + std
        return action + (action.clamp(-1 + 1e-6, 1 - 1e-6) - action).detach(), torch.zeros(len(state))
    mean, log_std = outputs.chunk(2, 1)
    normal = torch.distributions.Normal(mean, (-4 + 6 * log_std.tanh()).exp())
    pre_tanh = mean + normal.scale
    log_prob = normal.log_prob(pre_tanh) - (1 - pre_tanh.tanh().square()).log()
    return pre_tanh.tanh(), log_prob.sum(1)


@KINDS
def test_the_critic_loss_is_the_cross_entropy_of_decoded_targets(kind: str) -> None:
    learner, data = make_learner(kind), batch()._replace(reward_ext=torch.linspace(-50, 200, 16))
    with torch.no_grad():
        state, next_state = (learner.representation.encode(views).state for views in (data.views, data.next_views))
        target_next_state = learner.target_representation.encode(data.next_views).state
        action, log_prob = sample_action(learner, kind, next_state)
        value = torch.minimum(*map(decode, predict(learner.target_critic, target_next_state, action)))
        target = data.reward_ext + data.discount * (value - 0.1 * log_prob)
        logits = predict(learner.critic, state, data.action)
    expected = sum(
        cross_entropy(row, goal) for head in logits for row, goal in zip(head, target.tolist(), strict=True)
    ) / len(target)
    metrics = learner.update(data, 0)
    assert metrics["critic_loss"].item() == pytest.approx(expected, rel=1e-4)
    values = torch.cat([decode(head) for head in logits])
    assert metrics["value"].item() == pytest.approx(values.mean().item(), rel=1e-4)


@KINDS
def test_the_actor_climbs_the_decoded_expectation(kind: str) -> None:
    learner, data = make_learner(kind), batch()
    for group in learner.critic_optimizer.param_groups:
        group["lr"] = 0.0
    state = learner.representation.encode(data.views).state.detach()
    action, log_prob = sample_action(learner, kind, state)
    value = torch.minimum(*map(decode, predict(learner.critic, state, action)))
    expected = torch.autograd.grad((0.1 * log_prob - value).mean(), list(learner.actor.parameters()))
    learner.update(data, 0)
    for parameter, gradient in zip(learner.actor.parameters(), expected, strict=True):
        assert gradient.abs().max() > 1e-3
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-4)


@KINDS
def test_a_two_hot_critic_learns_large_returns(kind: str) -> None:
    """Without a future, the values approach the reward, from exactly 0."""
    learner: Any = agent(kind, "none", shift_pixels=0, critic="two_hot", lr=3e-3)
    data = batch()._replace(reward_ext=torch.full((16,), 300.0), discount=torch.zeros(16))
    first = learner.update(data, 0)
    assert first["value"].item() == 0
    assert first["critic_loss"].item() == pytest.approx(2 * math.log(NUM_BINS), rel=1e-5)
    for step in range(60):
        learner.update(data, step)
    values = learner.critic(learner.representation.encode(data.views).state, data.action).mean(0)
    torch.testing.assert_close(values, data.reward_ext, rtol=0.2, atol=1.0)


def test_neighboring_bins_are_a_fifth_apart_and_reach_beyond_the_returns() -> None:
    """Rewards of 1 per simulator frame and γ = 0.99 at 100 frames a step give returns of 10,000."""
    centers = TwoHot(MAX_ABS_VALUE, NUM_BINS).centers
    torch.testing.assert_close(centers, torch.tensor(BINS), rtol=1e-5, atol=1e-5)
    ratios = (centers[51:] + 1)[1:] / (centers[51:] + 1)[:-1]
    assert ratios.max() < 1.25
    assert ((centers > 0) & (centers < 100)).sum() > 20
    assert centers[-1] > 10_000
