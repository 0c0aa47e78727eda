"""VCSE against a reference in float64, and its critics of the task's reward."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from manyview.methods import VCSE, HasCritic, VCSEConfig
from manyview.methods.bonuses.vcse import compute_conditional_entropy
from manyview.training import make_trainer
from tests.support.batches import make_agent, make_batch
from tests.support.dynamics import (
    MODEL_SIZES,
    build_bonus,
    compute_distance,
    copy_to_float64,
    embed_views,
    make_masked_batch,
)
from tests.support.runs import make_short_config

STATE_DIM = 16


def make_vcse(**changes: Any) -> VCSE:
    return build_bonus(VCSE, VCSEConfig(**MODEL_SIZES, **{"k": 4, **changes}), state_dim=STATE_DIM)


def make_vcse_agent(agent_name: str, **changes: Any) -> Any:
    return make_agent(agent_name, "vcse", bonus_changes={**MODEL_SIZES, "k": 4, **changes})


def record_calls(part: Any, name: str) -> list[tuple[Any, ...]]:
    """Return a list that gets the arguments of every call of a method."""
    calls, method = list[tuple[Any, ...]](), getattr(part, name)

    def call(*args: Any) -> Any:
        calls.append(args)
        return method(*args)

    setattr(part, name, call)
    return calls


def compute_digamma(count: int) -> float:
    """Return ψ of a natural number, by its harmonic sum and Euler's constant."""
    return sum(1 / n for n in range(1, count)) - 0.5772156649015329


def estimate_entropy(points: Tensor, mask: Tensor, values: Tensor, k: int) -> list[float]:
    """Return the terms of the paper's entropy estimate, by loops."""
    mean = sum(values.tolist()) / len(values)
    std = math.sqrt(sum((value - mean) ** 2 for value in values.tolist()) / len(values) + 1e-5)
    standardized, rows, terms = [(value - mean) / std for value in values.tolist()], range(len(values)), []
    for row in rows:
        value_gaps = [abs(standardized[row] - standardized[other]) for other in rows]
        gaps = [max(compute_distance(points, mask, row, other), value_gaps[other]) for other in rows]
        epsilon = sorted(gaps)[k - 1]
        count = sum(gap < epsilon for gap in value_gaps)
        dim = points.shape[2] * int(mask[row].sum())
        terms.append(compute_digamma(count + 1) / dim + math.log(2 * epsilon + 1e-5))
    return terms


@pytest.mark.parametrize("state", ["current", "next"])
def test_the_bonus_is_the_estimate_of_the_paper(state: str) -> None:
    vcse, data = make_vcse(rewarded_state=state), make_masked_batch()
    views, mask = (data.views, data.mask) if state == "current" else (data.next_views, data.next_mask)
    points = embed_views(copy_to_float64(vcse), views, mask).detach()
    for spread in (0.1, 30.0):
        values = spread * torch.randn(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        actual = vcse.compute(data, None, values.float())
        expected = torch.tensor(estimate_entropy(points, mask, values, 4))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        assert not actual.requires_grad


def test_a_rare_value_raises_the_bonus_of_equal_states() -> None:
    vcse, data = make_vcse(), make_batch(16)
    views, values = data.views[:1].expand_as(data.views).clone(), torch.zeros(16)
    values[7] = 1.0
    features = vcse.encode(views, data.mask)
    bonuses = compute_conditional_entropy(features, values, k=4)
    assert bonuses.argmax() == 7


def test_values_are_standardized() -> None:
    vcse, data = make_vcse(), make_batch(16)
    values = torch.randn(16, generator=torch.Generator().manual_seed(0))
    first, second = (vcse.compute(data, None, scaled_values) for scaled_values in (values, 50 * values - 700))
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-3)


def test_rows_without_a_view_and_equal_rows_have_finite_bonuses() -> None:
    vcse, data = make_vcse(), make_batch(8)
    data.mask[2] = False
    views = data.views[:1].expand_as(data.views)
    assert vcse.compute(data._replace(views=views), None, torch.zeros(8)).isfinite().all()
    assert vcse.compute(data._replace(mask=torch.zeros_like(data.mask)), None, torch.zeros(8)).isfinite().all()


def test_the_critics_learn_the_tasks_reward_by_adams_steps() -> None:
    vcse, rng = make_vcse(critic_tau=0.3), torch.Generator().manual_seed(0)
    critic, target_critic = deepcopy(vcse.critic).double(), deepcopy(vcse.target_critic).double()
    adam = torch.optim.Adam(critic.parameters(), lr=MODEL_SIZES["lr"])
    models = [parameter.clone() for parameter in (*vcse.encoder.parameters(), *vcse.forward_model.parameters())]

    def compute_value(twin_critic: Any, head: Any, state: Tensor, action: Tensor) -> Tensor:
        linear, norm, _ = twin_critic.projection
        hidden = state.double() @ linear.weight.T + linear.bias
        centered = hidden - hidden.mean()
        projected = (centered / (centered.square().mean() + 1e-5).sqrt() * norm.weight + norm.bias).tanh()
        inputs = torch.cat([projected, action.double()])
        for layer in head:
            inputs = inputs.clamp(min=0) if isinstance(layer, torch.nn.ReLU) else inputs @ layer.weight.T + layer.bias
        return inputs.squeeze(0)

    for seed in range(3):
        data = make_batch(8, seed=seed)
        state, next_state = torch.randn(2, 8, STATE_DIM, generator=rng)
        next_action = torch.rand(8, 2, generator=rng) * 2 - 1
        loss = torch.zeros((), dtype=torch.float64)
        for row in range(8):
            next_values = [
                compute_value(target_critic, head, next_state[row], next_action[row]).detach()
                for head in target_critic.heads
            ]
            target = data.reward_ext[row].double() + data.discount[row].double() * min(next_values)
            for head in critic.heads:
                loss = loss + (compute_value(critic, head, state[row], data.action[row]) - target) ** 2 / 8
        adam.zero_grad()
        loss.backward()
        adam.step()
        with torch.no_grad():
            for target_parameter, parameter in zip(target_critic.parameters(), critic.parameters(), strict=True):
                target_parameter.copy_(0.7 * target_parameter + 0.3 * parameter)
        metrics = vcse.update_critic(data, state.requires_grad_(), next_state, next_action)
        assert state.grad is None, "no gradient reaches the policy's features"
        assert metrics["vcse_critic_loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    for module, reference in ((vcse.critic, critic), (vcse.target_critic, target_critic)):
        for parameter, expected in zip(module.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(parameter, expected.float(), rtol=1e-3, atol=2e-4)
    assert all(map(torch.equal, models, (*vcse.encoder.parameters(), *vcse.forward_model.parameters())))


@pytest.mark.parametrize("agent_name", ["drqv2", "sac"])
@pytest.mark.parametrize("state", ["current", "next"])
def test_v_is_the_smaller_value_of_the_greedy_action_in_the_rewarded_state(agent_name: str, state: str) -> None:
    agent, data = make_vcse_agent(agent_name, rewarded_state=state), make_batch()
    bonus: Any = agent.bonus
    assert isinstance(agent.bonus, HasCritic)
    encoded_batch, calls = agent.encode_batch(data), record_calls(bonus, "compute")
    agent.compute_bonus(data, encoded_batch, torch.full((2, len(data.mask)), torch.nan))
    features = encoded_batch.features if state == "current" else encoded_batch.next_features
    mean = agent.actor(features.state)[:, : data.action.shape[1]].tanh()
    critic = bonus.critic
    inputs = torch.cat([critic.projection(features.state), mean], 1)
    twin_values = torch.stack([head(inputs).squeeze(1) for head in critic.heads])
    ((_, _, values),) = calls
    torch.testing.assert_close(values, twin_values.amin(0).detach())
    assert not values.requires_grad


@pytest.mark.parametrize("agent_name", ["drqv2", "sac"])
def test_no_intrinsic_reward_reaches_its_critics(agent_name: str) -> None:
    agent, data = make_vcse_agent(agent_name), make_batch()
    data = data._replace(discount=torch.zeros_like(data.discount))
    agent.beta = lambda _: 1e6
    calls = record_calls(agent.bonus, "update_critic")
    critic = deepcopy(agent.bonus.critic)
    metrics = agent.update(data, 0)
    ((_, state, next_state, next_action),) = calls
    assert not any(part.requires_grad for part in (state, next_state, next_action))
    loss = sum((values - data.reward_ext).square().mean() for values in critic(state, data.action))
    torch.testing.assert_close(metrics["vcse_critic_loss"], loss.detach())
    assert metrics["critic_loss"] > 1e6
    expected = agent.actor(next_state)[:, : data.action.shape[1]].tanh()
    torch.testing.assert_close(next_action, expected.detach())


def test_bonus_updates_do_not_change_the_policy() -> None:
    agent, data = make_vcse_agent("sac"), make_batch()
    encoded_batch = agent.encode_batch(data)
    networks = [agent.representation, agent.actor, agent.critic, agent.target_critic]
    before = [part.clone() for network in networks for part in network.parameters()]
    agent.update_bonus(data)
    assert agent.update_bonus_critic(data, encoded_batch).keys() == {
        "vcse_critic_loss",
        "vcse_critic_grad_norm",
        "vcse_value",
    }
    after = [part for network in networks for part in network.parameters()]
    assert all(map(torch.equal, before, after))
    assert all(part.grad is None for part in after)


def test_an_incompatible_run_is_refused() -> None:
    with pytest.raises(ValueError, match="got ppo"):
        make_short_config("ppo+vcse", task="toy/hidden_goal")
    with pytest.raises(ValueError, match=r"bonus\.k: expected at most replay\.batch_size=8, got 12"):
        make_trainer(make_short_config("sac+vcse", bonus={"k": 12}))
