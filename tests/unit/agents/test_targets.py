"""Targets and losses of critic, actor and temperature, against their definitions."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from manyview.agents import DrQv2
from manyview.nn.heads import saturation_penalty
from tests.support.batches import ACTION_SIZE, make_agent, make_batch

KINDS = ("drqv2", "sac")
MASK = torch.arange(32).view(16, 2) % 3 > 0


def make_fixed_noise_agent(kind: str, method: str, **options: Any) -> Any:
    """Return an agent with noise 1 whose target networks differ from its networks."""
    agent: Any = make_agent(kind, method, shift_pixels=0, **options)
    agent.sample_noise = torch.ones_like
    targets = [agent.target_critic] if kind == "drqv2" else [agent.target_critic, agent.target_representation]
    for parameter in (parameter for target in targets for parameter in target.parameters()):
        parameter.add_(0.1 * torch.randn_like(parameter))
    return agent


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["mem", "re3"])
@pytest.mark.parametrize("step", [0, 90_000])
def test_the_target_of_the_critic_equals_its_definition(kind: str, method: str, step: int) -> None:
    agent, targets = make_fixed_noise_agent(kind, method), list[torch.Tensor]()
    agent.update_target_stats, agent.beta = targets.append, lambda step: 1 + step / 90_000
    discount, rows = torch.linspace(0, 1, 16), torch.arange(16) // 2
    data = make_batch()._replace(mask=MASK.flip(0), next_mask=MASK, discount=discount, indices=rows)
    with torch.no_grad():
        entropy = agent.bonus.entropy if method == "mem" else agent.bonus
        bonus = entropy.compute_reward(agent.bonus.encode(data.views, data.mask), indices=rows)
        next_state = agent.representation.encode(data.next_views, MASK).state
        if isinstance(agent, DrQv2):
            action = (agent.actor(next_state).tanh() + min(agent.config.compute_std(step), 0.3)).clamp(-1, 1)
            value = agent.target_critic(next_state, action).amin(0)
        else:
            action, log_prob = agent._sample_action(next_state)
            state = agent.target_representation.encode(data.next_views, MASK).state
            value = agent.target_critic(state, action).amin(0) - 0.1 * log_prob
    agent.update(data, step)
    torch.testing.assert_close(targets[0], data.reward_ext + agent.beta(step) * bonus + discount * value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_the_actor_equals_that_of_its_loss(kind: str) -> None:
    """Half of the actions are at their bound, where the gradient of DrQ-v2's mean passes."""
    agent = make_fixed_noise_agent(kind, "none")
    for group in agent.critic_optimizer.param_groups:
        group["lr"] = 0.0
    agent.actor[-1].bias.data[0] = 3.0
    state = agent.representation.encode(make_batch().views).state.detach()
    if isinstance(agent, DrQv2):
        agent.config = replace(agent.config, saturation_coef=0.5)
        raw = agent.actor(state)
        action = raw.tanh() + ((raw.tanh() + 0.3).clamp(-1, 1) - raw.tanh()).detach()
        loss = 0.5 * saturation_penalty(raw) - agent.critic(state, action).amin(0).mean()
    else:
        action, log_prob = agent._sample_action(state)
        loss = (0.1 * log_prob - agent.critic(state, action).amin(0)).mean()
    expected = torch.autograd.grad(loss, list(agent.actor.parameters()))
    agent.update(make_batch(), 0)
    for parameter, gradient in zip(agent.actor.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)
    if kind == "sac":
        assert agent.log_temperature.grad.item() == pytest.approx(
            -0.1 * (log_prob.mean().item() - ACTION_SIZE), rel=1e-4
        )


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_uses_the_mean_and_exploration_adds_the_noise_of_the_step(kind: str) -> None:
    agent, data = make_fixed_noise_agent(kind, "none"), make_batch()
    mean = agent.actor(agent.representation.encode(data.views).state)[:, :ACTION_SIZE].tanh()
    torch.testing.assert_close(agent.act(data.views, data.mask, step=0, explore=False), mean)
    if isinstance(agent, DrQv2):
        action = agent.act(data.views, data.mask, step=90_000, explore=True)
        torch.testing.assert_close(action, (mean + agent.config.compute_std(90_000)).clamp(-1, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_scale_is_one_if_the_critic_does_not_train_the_encoder(kind: str) -> None:
    agent = make_fixed_noise_agent(kind, "mem", critic_trains_encoder=False)
    agent.update_target_stats(1000 * make_batch().reward_ext)
    assert agent.representation_loss_scale == 1
