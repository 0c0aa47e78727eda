"""`agent.encoder_tau` < 1: a target encoder for the critic's targets, optionally for the bonus."""

from typing import Any

import pytest
import torch

from tests.support.batches import make_agent, make_batch

KINDS = pytest.mark.parametrize("kind", ["drqv2", "sac"])
TAU = 0.1
SHARED: Any = {"reward_frames": "augmented", "shift_pixels": 0}


def make_target_agent(kind: str, method: str = "mem", **options: Any) -> Any:
    """Return an agent with noise 1 whose target encoder differs from its encoder."""
    agent: Any = make_agent(kind, method, **{**SHARED, "encoder_tau": TAU, **options})
    agent.sample_noise = torch.ones_like
    rng = torch.Generator().manual_seed(2)
    for parameter in agent.target_representation.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=rng))
    return agent


def copy_parameters(module: Any) -> list[torch.Tensor]:
    return [parameter.detach().double() for parameter in module.parameters()]


@KINDS
def test_without_a_target_encoder_targets_use_the_encoder_itself(kind: str) -> None:
    agent = make_agent(kind, "mem", encoder_tau=1.0)
    assert agent.target_representation is agent.representation


@KINDS
@pytest.mark.parametrize("method", ["mem", "none", "curl", "mad"])
def test_the_critic_is_trained_on_the_target_encoders_next_state(kind: str, method: str) -> None:
    """The action is that of the policy on the online features; only the value uses the target encoder."""
    agent, targets, data = make_target_agent(kind, method), list[torch.Tensor](), make_batch()
    agent.beta, agent.update_target_stats = lambda _: 0.0, targets.append
    with torch.no_grad():
        online, target = (
            network.encode(data.next_views).state for network in (agent.representation, agent.target_representation)
        )
        if kind == "drqv2":
            action, log_prob = (agent.actor(online).tanh() + 0.3).clamp(-1 + 1e-6, 1 - 1e-6), torch.zeros(())
        else:
            action, log_prob = agent._sample_action(online)
        value = agent.target_critic(target, action).amin(0) - 0.1 * log_prob
        assert not torch.allclose(agent.target_critic(online, action).amin(0), value + 0.1 * log_prob)
    agent.update(data, 0)
    torch.testing.assert_close(targets[0], data.reward_ext + 0.99 * value)


@KINDS
@pytest.mark.parametrize("state", ["current", "next"])
@pytest.mark.parametrize("from_target", [False, True])
def test_the_bonus_is_computed_on_the_configured_encoder(kind: str, state: str, from_target: bool) -> None:
    agent = make_target_agent(
        kind, bonus_changes={"target_encoder": from_target, "rewarded_state": state, "reward_scale": "raw"}
    )
    rewarded_features, data = list[torch.Tensor](), make_batch()
    compute = agent.bonus.entropy.compute_reward

    def record(features: Any, **options: Any) -> torch.Tensor:
        rewarded_features.append(features.terms)
        result: torch.Tensor = compute(features, **options)
        return result

    agent.bonus.entropy.compute_reward = record
    network = agent.target_representation if from_target else agent.representation
    with torch.no_grad():
        expected = network.encode(data.views if state == "current" else data.next_views).terms
    agent.update(data, 0)
    torch.testing.assert_close(rewarded_features, [expected])


@KINDS
def test_the_target_encoder_follows_by_tau_and_gets_no_gradient(kind: str) -> None:
    """θ' + τ (θ - θ') in float64, with the encoder after its step; SAC moves it at every second update."""
    agent = make_target_agent(kind)
    for step in range(4):
        before = copy_parameters(agent.target_representation)
        agent.update(make_batch(seed=step), step)
        online = copy_parameters(agent.representation)
        tau = TAU if kind == "drqv2" or step % 2 else 0.0
        for old, new, theta in zip(before, copy_parameters(agent.target_representation), online, strict=True):
            torch.testing.assert_close(new, old + tau * (theta - old), rtol=1e-5, atol=1e-7)
    assert all(parameter.grad is None for parameter in agent.target_representation.parameters())
    assert not any(parameter.requires_grad for parameter in agent.target_representation.parameters())


@KINDS
def test_the_online_encoder_does_not_depend_on_the_target_of_terminal_rows(kind: str) -> None:
    """If all rows are terminal, only the target differs, and the encoder takes the same step."""
    data = make_batch()._replace(discount=torch.zeros(16))
    encoders = []
    for tau in (TAU, 1.0):
        agent = make_target_agent(kind, "none", encoder_tau=TAU)
        if tau == 1.0:
            agent.target_representation = agent.representation
        agent.update(data, 0)
        encoders.append(copy_parameters(agent.representation))
    assert all(torch.equal(*pair) for pair in zip(*encoders, strict=True))


@KINDS
def test_acting_uses_the_online_encoder(kind: str) -> None:
    agent, data = make_target_agent(kind, "none"), make_batch()
    action = agent.act(data.views, data.mask, step=0, explore=False)
    for parameter in agent.target_representation.parameters():
        parameter.data.zero_()
    assert torch.equal(agent.act(data.views, data.mask, step=0, explore=False), action)
