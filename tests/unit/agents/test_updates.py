"""What an update changes, and what it must leave alone."""

from typing import Any

import pytest
import torch
from torch import nn

from manyview.agents import SAC, DrQv2
from manyview.nn.soft_update import soft_update
from tests.support.batches import make_agent, make_batch

KINDS, METHODS = ("drqv2", "sac"), ("mem", "none", "re3", "curl", "mad", "pixel+mem", "mem+none")
every = pytest.mark.parametrize(("kind", "method"), [(kind, method) for kind in KINDS for method in METHODS])


def parameters(module: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def gradients(module: Any) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def changed(before: list[torch.Tensor], module: Any) -> bool:
    return any(not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))


@every
def test_every_composition_learns_and_stays_finite(kind: str, method: str) -> None:
    learner = make_agent(kind, method)
    before = parameters(learner)
    for step in range(3):
        metrics = learner.update(make_batch(seed=step), step)
    assert changed(before, learner)
    assert all(torch.isfinite(parameter).all() for parameter in learner.parameters())
    assert all(torch.isfinite(value).all() for value in metrics.values())
    assert not any(value.requires_grad for value in metrics.values())


@every
def test_the_same_seed_gives_the_same_agent(kind: str, method: str) -> None:
    one, other = make_agent(kind, method), make_agent(kind, method)
    for step in range(2):
        one.update(make_batch(seed=step), step)
        other.update(make_batch(seed=step), step)
    assert not changed(parameters(one), other)


@pytest.mark.quality("S9")
@pytest.mark.parametrize("kind", KINDS)
def test_the_actor_never_trains_the_encoder(kind: str) -> None:
    """Without the critic's and the method's loss nothing moves it, however the actor learns."""
    learner = make_agent(kind, "none")
    learner.critic_optimizer.param_groups[0]["lr"] = 0.0
    encoder, actor = parameters(learner.representation), parameters(learner.actor)
    learner.update(make_batch(), 0)
    assert not changed(encoder, learner.representation)
    assert changed(actor, learner.actor)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trains", [True, False])
def test_the_critic_trains_the_encoder_unless_it_is_told_not_to(kind: str, trains: bool) -> None:
    """What it is paid and what it did then say nothing to the encoder: it moves by its own loss alone."""
    learners = [make_agent(kind, "mem", critic_trains_encoder=trains) for _ in range(2)]
    first, second = (
        make_batch(),
        make_batch()._replace(reward_ext=5 + make_batch().reward_ext, action=-make_batch().action),
    )
    for step in range(3):
        learners[0].update(first, step)
        learners[1].update(second, step)
    encoders, critics = (
        [gradients(getattr(learner, part)) for learner in learners] for part in ("representation", "critic")
    )
    assert any(not torch.equal(*pair) for pair in zip(*critics, strict=True))
    assert any(not torch.equal(*pair) for pair in zip(*encoders, strict=True)) == trains


@pytest.mark.quality("S9")
@pytest.mark.parametrize("kind", KINDS)
def test_the_actors_loss_leaves_no_gradient_on_the_critic(kind: str) -> None:
    learner = make_agent(kind, "none")
    after: dict[str, list[torch.Tensor]] = {}
    for name in ("critic_optimizer", "actor_optimizer"):
        optimizer: torch.optim.Optimizer = getattr(learner, name)
        optimizer.register_step_post_hook(lambda *_, name=name: after.update({name: gradients(learner.critic)}))
    learner.update(make_batch(), 0)
    assert all(torch.equal(*pair) for pair in zip(after["critic_optimizer"], after["actor_optimizer"], strict=True))


@pytest.mark.quality("S9")
def test_drqv2s_target_moves_by_its_rule_alone() -> None:
    learner = make_agent("drqv2", "mem")
    assert isinstance(learner, DrQv2)
    target = parameters(learner.target_critic)
    learner.update(make_batch(), 0)
    rate = learner.config.critic_tau
    for old, new, online in zip(target, learner.target_critic.parameters(), learner.critic.parameters(), strict=True):
        assert torch.allclose(new, old + rate * (online - old), atol=1e-7)


@pytest.mark.quality("S9")
def test_sacs_targets_move_every_second_update_each_at_its_own_rate() -> None:
    learner = make_agent("sac", "mem")
    assert isinstance(learner, SAC)
    parts: list[Any] = [learner.target_critic, learner.target_representation]
    targets = nn.ModuleList(parts)
    start = parameters(targets)
    learner.update(make_batch(seed=0), 0)
    assert not changed(start, targets)
    learner.update(make_batch(seed=1), 1)
    rates = [learner.config.critic_tau] * len(parameters(learner.target_critic))
    rates += [learner.config.encoder_tau] * len(parameters(learner.target_representation))
    online = [*learner.critic.parameters(), *learner.representation.parameters()]
    for old, new, now, rate in zip(start, targets.parameters(), online, rates, strict=True):
        assert torch.allclose(new, old + rate * (now - old), atol=1e-6)


@pytest.mark.quality("S9")
@pytest.mark.parametrize("kind", KINDS)
def test_re3s_encoder_never_changes(kind: str) -> None:
    learner = make_agent(kind, "re3")
    before = parameters(learner.bonus)
    learner.update(make_batch(), 0)
    assert not changed(before, learner.bonus)


def test_noise_falls_along_its_schedule() -> None:
    learner = make_agent("drqv2", "none")
    assert isinstance(learner, DrQv2)
    config = learner.config
    assert config.compute_std(0) == config.std_start
    assert config.compute_std(config.std_steps // 2) == pytest.approx((config.std_start + config.std_end) / 2)
    assert config.compute_std(10 * config.std_steps) == config.std_end


@pytest.mark.parametrize("kind", KINDS)
def test_acting_without_exploring_is_deterministic_and_bounded(kind: str) -> None:
    learner, data = make_agent(kind, "mem"), make_batch()
    one, other = (learner.act(data.views, data.mask, step=0, explore=False) for _ in range(2))
    assert torch.equal(one, other)
    tried = torch.stack([learner.act(data.views, data.mask, step=0, explore=True) for _ in range(20)])
    assert tried.abs().max() <= 1
    assert tried.std(0).min() > 0


def test_sacs_log_probability_is_that_of_the_squashed_normal() -> None:
    learner = make_agent("sac", "none")
    assert isinstance(learner, SAC)
    state = torch.randn(64, learner.representation.state_dim)
    action, log_prob = learner._sample_action(state)
    mean, log_std = learner.actor(state).chunk(2, dim=1)
    std = (-10 + 6 * (log_std.tanh() + 1)).exp()
    base = torch.distributions.Normal(mean, std)
    squashed = torch.distributions.TransformedDistribution(base, torch.distributions.transforms.TanhTransform())
    inside = action.abs().max(1).values < 0.999
    expected = squashed.log_prob(action).sum(1)
    assert torch.allclose(log_prob[inside], expected[inside], rtol=1e-3, atol=1e-3)


def test_a_soft_update_of_one_copies() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    soft_update(one, other, 1.0)
    assert not changed(parameters(one), other)
