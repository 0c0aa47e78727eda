"""Updates of off-policy agents: which parts they change and which they must not."""

from typing import Any

import pytest
import torch
from torch import nn

from manyview.agents import SAC, DrQv2
from manyview.nn.soft_update import soft_update
from tests.support.batches import make_agent, make_batch

KINDS, METHODS = ("drqv2", "sac"), ("mem", "none", "re3", "curl", "mad", "pixel+mem", "mem+none")
ALL_METHODS = pytest.mark.parametrize(("kind", "method"), [(kind, method) for kind in KINDS for method in METHODS])


def copy_parameters(module: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def copy_gradients(module: Any) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def has_changed(before: list[torch.Tensor], module: Any) -> bool:
    return any(not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))


@ALL_METHODS
def test_every_composition_learns_and_stays_finite(kind: str, method: str) -> None:
    agent = make_agent(kind, method)
    before = copy_parameters(agent)
    for step in range(3):
        metrics = agent.update(make_batch(seed=step), step)
    assert has_changed(before, agent)
    assert all(torch.isfinite(parameter).all() for parameter in agent.parameters())
    assert all(torch.isfinite(value).all() for value in metrics.values())
    assert not any(value.requires_grad for value in metrics.values())


@ALL_METHODS
def test_the_same_seed_gives_the_same_agent(kind: str, method: str) -> None:
    agent, same_seed_agent = make_agent(kind, method), make_agent(kind, method)
    for step in range(2):
        agent.update(make_batch(seed=step), step)
        same_seed_agent.update(make_batch(seed=step), step)
    assert not has_changed(copy_parameters(agent), same_seed_agent)


@pytest.mark.quality("S9")
@pytest.mark.parametrize("kind", KINDS)
def test_the_actor_never_trains_the_encoder(kind: str) -> None:
    """Without the losses of critic and method, the encoder does not change."""
    agent = make_agent(kind, "none")
    agent.critic_optimizer.param_groups[0]["lr"] = 0.0
    encoder, actor = copy_parameters(agent.representation), copy_parameters(agent.actor)
    agent.update(make_batch(), 0)
    assert not has_changed(encoder, agent.representation)
    assert has_changed(actor, agent.actor)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trains_encoder", [True, False])
def test_the_critic_trains_the_encoder_unless_disabled(kind: str, trains_encoder: bool) -> None:
    """If disabled, rewards and actions do not change the gradients of the encoder."""
    agents = [make_agent(kind, "mem", critic_trains_encoder=trains_encoder) for _ in range(2)]
    batch, other_batch = (
        make_batch(),
        make_batch()._replace(reward_ext=5 + make_batch().reward_ext, action=-make_batch().action),
    )
    for step in range(3):
        agents[0].update(batch, step)
        agents[1].update(other_batch, step)
    encoders, critics = (
        [copy_gradients(getattr(agent, part)) for agent in agents] for part in ("representation", "critic")
    )
    assert any(not torch.equal(*pair) for pair in zip(*critics, strict=True))
    assert any(not torch.equal(*pair) for pair in zip(*encoders, strict=True)) == trains_encoder


@pytest.mark.quality("S9")
@pytest.mark.parametrize("kind", KINDS)
def test_the_actors_loss_leaves_no_gradient_on_the_critic(kind: str) -> None:
    agent = make_agent(kind, "none")
    gradients: dict[str, list[torch.Tensor]] = {}
    for name in ("critic_optimizer", "actor_optimizer"):
        optimizer: torch.optim.Optimizer = getattr(agent, name)
        optimizer.register_step_post_hook(lambda *_, name=name: gradients.update({name: copy_gradients(agent.critic)}))
    agent.update(make_batch(), 0)
    assert all(
        torch.equal(*pair) for pair in zip(gradients["critic_optimizer"], gradients["actor_optimizer"], strict=True)
    )


@pytest.mark.quality("S9")
def test_the_target_of_drqv2_moves_by_critic_tau() -> None:
    agent = make_agent("drqv2", "mem")
    assert isinstance(agent, DrQv2)
    target = copy_parameters(agent.target_critic)
    agent.update(make_batch(), 0)
    tau = agent.config.critic_tau
    for old, new, online in zip(target, agent.target_critic.parameters(), agent.critic.parameters(), strict=True):
        assert torch.allclose(new, old + tau * (online - old), atol=1e-7)


@pytest.mark.quality("S9")
def test_the_targets_of_sac_move_every_second_update_by_their_tau() -> None:
    agent = make_agent("sac", "mem")
    assert isinstance(agent, SAC)
    parts: list[Any] = [agent.target_critic, agent.target_representation]
    targets = nn.ModuleList(parts)
    start = copy_parameters(targets)
    agent.update(make_batch(seed=0), 0)
    assert not has_changed(start, targets)
    agent.update(make_batch(seed=1), 1)
    taus = [agent.config.critic_tau] * len(copy_parameters(agent.target_critic))
    taus += [agent.config.encoder_tau] * len(copy_parameters(agent.target_representation))
    online = [*agent.critic.parameters(), *agent.representation.parameters()]
    for old, new, online_parameter, tau in zip(start, targets.parameters(), online, taus, strict=True):
        assert torch.allclose(new, old + tau * (online_parameter - old), atol=1e-6)


@pytest.mark.quality("S9")
@pytest.mark.parametrize("kind", KINDS)
def test_the_encoder_of_re3_never_changes(kind: str) -> None:
    agent = make_agent(kind, "re3")
    before = copy_parameters(agent.bonus)
    agent.update(make_batch(), 0)
    assert not has_changed(before, agent.bonus)


def test_noise_follows_its_schedule() -> None:
    agent = make_agent("drqv2", "none")
    assert isinstance(agent, DrQv2)
    config = agent.config
    assert config.compute_std(0) == config.std_start
    assert config.compute_std(config.std_steps // 2) == pytest.approx((config.std_start + config.std_end) / 2)
    assert config.compute_std(10 * config.std_steps) == config.std_end


@pytest.mark.parametrize("kind", KINDS)
def test_acting_without_exploring_is_deterministic_and_bounded(kind: str) -> None:
    agent, data = make_agent(kind, "mem"), make_batch()
    first, second = (agent.act(data.views, data.mask, step=0, explore=False) for _ in range(2))
    assert torch.equal(first, second)
    actions = torch.stack([agent.act(data.views, data.mask, step=0, explore=True) for _ in range(20)])
    assert actions.abs().max() <= 1
    assert actions.std(0).min() > 0


def test_the_log_probability_of_sac_is_that_of_the_squashed_normal() -> None:
    agent = make_agent("sac", "none")
    assert isinstance(agent, SAC)
    state = torch.randn(64, agent.representation.state_dim)
    action, log_prob = agent._sample_action(state)
    mean, log_std = agent.actor(state).chunk(2, dim=1)
    std = (-10 + 6 * (log_std.tanh() + 1)).exp()
    base = torch.distributions.Normal(mean, std)
    squashed = torch.distributions.TransformedDistribution(base, torch.distributions.transforms.TanhTransform())
    inside = action.abs().max(1).values < 0.999
    expected = squashed.log_prob(action).sum(1)
    assert torch.allclose(log_prob[inside], expected[inside], rtol=1e-3, atol=1e-3)


def test_a_soft_update_with_tau_1_copies() -> None:
    online, target = nn.Linear(2, 2), nn.Linear(2, 2)
    soft_update(online, target, 1.0)
    assert not has_changed(copy_parameters(online), target)
