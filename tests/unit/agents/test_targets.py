"""What critic, actor and temperature learn, against their definitions."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from manyview.agents import DrQv2
from manyview.nn.heads import saturation_penalty
from tests.support.batches import ACTION_SIZE, make_agent, make_batch

KINDS = ("drqv2", "sac")
SEEN = torch.arange(32).view(16, 2) % 3 > 0


def still(kind: str, method: str, **options: Any) -> Any:
    """An agent whose noise is one and whose targets are not its critics."""
    learner: Any = make_agent(kind, method, shift_pixels=0, **options)
    learner.sample_noise = torch.ones_like
    targets = [learner.target_critic] if kind == "drqv2" else [learner.target_critic, learner.target_representation]
    for parameter in (parameter for target in targets for parameter in target.parameters()):
        parameter.add_(0.1 * torch.randn_like(parameter))
    return learner


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["mem", "re3"])
@pytest.mark.parametrize("step", [0, 90_000])
def test_the_critics_target_is_its_definition(kind: str, method: str, step: int) -> None:
    learner, seen = still(kind, method), list[torch.Tensor]()
    learner.update_target_stats, learner.beta = seen.append, lambda step: 1 + step / 90_000
    discount, rows = torch.linspace(0, 1, 16), torch.arange(16) // 2
    data = make_batch()._replace(mask=SEEN.flip(0), next_mask=SEEN, discount=discount, indices=rows)
    with torch.no_grad():
        entropy = learner.bonus.entropy if method == "mem" else learner.bonus
        bonus = entropy.compute_reward(learner.bonus.encode(data.views, data.mask), indices=rows)
        later = learner.representation.encode(data.next_views, SEEN).state
        if isinstance(learner, DrQv2):
            action = (learner.actor(later).tanh() + min(learner.config.compute_std(step), 0.3)).clamp(-1, 1)
            value = learner.target_critic(later, action).amin(0)
        else:
            action, log_prob = learner._sample_action(later)
            state = learner.target_representation.encode(data.next_views, SEEN).state
            value = learner.target_critic(state, action).amin(0) - 0.1 * log_prob
    learner.update(data, step)
    torch.testing.assert_close(seen[0], data.reward_ext + learner.beta(step) * bonus + discount * value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_actor_climbs_what_its_critic_values(kind: str) -> None:
    """Half of the actions stand at their bound, through which the gradient of DrQ-v2's mean goes."""
    learner = still(kind, "none")
    for group in learner.critic_optimizer.param_groups:
        group["lr"] = 0.0
    learner.actor[-1].bias.data[0] = 3.0
    state = learner.representation.encode(make_batch().views).state.detach()
    if isinstance(learner, DrQv2):
        learner.config = replace(learner.config, saturation_coef=0.5)
        raw = learner.actor(state)
        action = raw.tanh() + ((raw.tanh() + 0.3).clamp(-1, 1) - raw.tanh()).detach()
        loss = 0.5 * saturation_penalty(raw) - learner.critic(state, action).amin(0).mean()
    else:
        action, log_prob = learner._sample_action(state)
        loss = (0.1 * log_prob - learner.critic(state, action).amin(0)).mean()
    expected = torch.autograd.grad(loss, list(learner.actor.parameters()))
    learner.update(make_batch(), 0)
    for parameter, gradient in zip(learner.actor.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)
    if kind == "sac":
        assert learner.log_temperature.grad.item() == pytest.approx(
            -0.1 * (log_prob.mean().item() - ACTION_SIZE), rel=1e-4
        )


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_plays_the_mean_and_exploring_adds_the_noise_of_the_step(kind: str) -> None:
    learner, data = still(kind, "none"), make_batch()
    mean = learner.actor(learner.representation.encode(data.views).state)[:, :ACTION_SIZE].tanh()
    torch.testing.assert_close(learner.act(data.views, data.mask, step=0, explore=False), mean)
    if isinstance(learner, DrQv2):
        tried = learner.act(data.views, data.mask, step=90_000, explore=True)
        torch.testing.assert_close(tried, (mean + learner.config.compute_std(90_000)).clamp(-1, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_where_the_critic_trains_no_encoder_nothing_is_scaled(kind: str) -> None:
    learner = still(kind, "mem", critic_trains_encoder=False)
    learner.update_target_stats(1000 * make_batch().reward_ext)
    assert learner.representation_loss_scale == 1
