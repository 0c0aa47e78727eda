"""MAD against float64 loops: states, and losses of critic, actor and temperature."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyview.agents import DrQv2
from manyview.agents.encoded_batch import TrainingInputs
from manyview.config.overrides import apply_overrides
from manyview.methods import MAD, MADConfig
from manyview.training import make_config
from tests.support.batches import ACTION_SIZE, IMAGE_SHAPE, make_agent, make_batch

ROWS, WEIGHT, STD = 6, 0.2, 0.3
PRESENT = torch.arange(2 * ROWS).view(ROWS, 2) % 3 > 0  # both views, or one of them
EACH_AGENT = pytest.mark.parametrize("agent_name", ["drqv2", "sac"])


def draw_noise(like: Tensor) -> Tensor:
    """Return noise that differs between rows, without a random generator."""
    return torch.arange(like.numel()).view_as(like).double().mul(0.7).sin().to(like.dtype)


def make_static_agent(agent_name: str, **changes: Any) -> Any:
    """Return an agent with learning rates of 0, to compare gradients after an update."""
    agent: Any = make_agent(agent_name, "mad", shift_pixels=0, **changes)
    agent.sample_noise = draw_noise
    for target in (agent.target_critic, agent.target_representation):
        for parameter in target.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    for optimizer in [value for value in vars(agent).values() if isinstance(value, torch.optim.Optimizer)]:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
    return agent


def apply_layers(layers: Any, inputs: Tensor) -> Tensor:
    """Return the output of a `Head` without its conversion to float32."""
    for layer in layers:
        inputs = layer(inputs)
    return inputs


class ReferenceLosses:
    """Losses of the paper by loops over rows and views, on a float64 copy of the agent."""

    def __init__(self, agent: Any, data: Any) -> None:
        self.agent, self.data = deepcopy(agent).double(), data
        self.agent.zero_grad()
        self.is_drq = isinstance(agent, DrQv2)

    def encode(self, views: Tensor, present: list[int], encoder: Any) -> Tensor:
        """Return the state [S] of one row from the views in `present`."""
        features = [apply_layers(encoder.trunk, (views[view].double() / 255 - 0.5).unsqueeze(0)) for view in present]
        state: Tensor = apply_layers(encoder.head, torch.stack(features).sum(0))[0]
        return state

    def list_states(self, row: int) -> tuple[Tensor, list[Tensor], list[int]]:
        """Return the state of all present views of s_t, single-view states and view indices."""
        views, encoder = self.data.views[row], self.agent.representation
        present = [view for view in range(2) if PRESENT[row, view]]
        return self.encode(views, present, encoder), [self.encode(views, [view], encoder) for view in present], present

    def predict(self, critic: Any, state: Tensor, action: Tensor) -> Tensor:
        """Return both values [2]."""
        return torch.stack([apply_layers(head, torch.cat([state, action]))[0] for head in critic.heads])

    def act(self, state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return an action [A], its log-probability and the output of the actor."""
        output = apply_layers(self.agent.actor, state)
        if self.is_drq:
            noisy = output.tanh() + (STD * noise).clamp(-STD, STD)
            return noisy + (noisy.clamp(-1, 1) - noisy).detach(), torch.zeros(()), output
        mean, log_std = output.chunk(2)
        normal = torch.distributions.Normal(mean, (-10 + 6 * (log_std.tanh() + 1)).exp())
        before_tanh = mean + normal.stddev * noise
        log_prob = normal.log_prob(before_tanh) - (1 - before_tanh.tanh().square()).log()
        return before_tanh.tanh(), log_prob.sum(), output

    @torch.no_grad()
    def compute_target(self, row: int) -> Tensor:
        agent, views = self.agent, self.data.next_views[row]
        noise = draw_noise(torch.empty(ROWS, ACTION_SIZE).double())[row]
        online, target = (
            self.encode(views, [0, 1], encoder) for encoder in (agent.representation, agent.target_representation)
        )
        action, log_prob, _ = self.act(online, noise)
        value = self.predict(agent.target_critic, target, action).min() - 0.1 * log_prob
        result: Tensor = self.data.reward_ext[row].double() + self.data.discount[row].double() * value
        return result

    def compute_critic_loss(self) -> Tensor:
        total = torch.zeros(()).double()
        for row in range(ROWS):
            state, single_states, _ = self.list_states(row)
            target, action = self.compute_target(row), self.data.action[row].double()
            errors = [
                (self.predict(self.agent.critic, view_state, action) - target).square().sum()
                for view_state in (state, *single_states)
            ]
            total = total + (1 - WEIGHT) * errors[0] + WEIGHT * sum(errors[1:]) / len(single_states)
        return total / ROWS

    def compute_actor_loss(self, saturation_coef: float) -> tuple[Tensor, Tensor]:
        """Return the actor's loss and the mean log-probability."""
        noise = draw_noise(torch.empty(3 * ROWS, ACTION_SIZE).double()).view(3, ROWS, ACTION_SIZE)
        total = mean_log_prob = torch.zeros(()).double()
        for row in range(ROWS):
            state, single_states, present = self.list_states(row)
            weights = [1 - WEIGHT] + [WEIGHT / len(single_states)] * len(single_states)
            for weight, view_state, noise_index in zip(
                weights, (state, *single_states), (0, *(view + 1 for view in present)), strict=True
            ):
                action, log_prob, output = self.act(view_state.detach(), noise[noise_index, row])
                loss = 0.1 * log_prob - self.predict(self.agent.critic, state.detach(), action).min()
                loss = loss + saturation_coef * (output.abs() - 2).relu().square().mean()
                total = total + weight / ROWS * loss
                mean_log_prob = mean_log_prob + weight / ROWS * log_prob
        return total, mean_log_prob


def assert_gradients(module: Any, loss: Tensor, reference: Any) -> None:
    """Check the gradients that an update left on `module`."""
    expected = torch.autograd.grad(loss, list(reference.parameters()))
    assert any(gradient.abs().max() > 1e-4 for gradient in expected)
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad.double(), gradient, rtol=1e-3, atol=1e-5)


@EACH_AGENT
def test_critics_actor_and_temperature_learn_from_all_and_from_single_views(agent_name: str) -> None:
    """Absent views enter no sum. Targets and the actor's values use all views."""
    options = {"encoder_tau": 0.05} | (
        {"saturation_coef": 0.5, "std_start": STD, "std_end": STD} if agent_name == "drqv2" else {}
    )
    agent, data = make_static_agent(agent_name, **options), make_batch(ROWS)._replace(mask=PRESENT)
    agent.actor[-1].bias.data[0] = 2.5
    reference, targets = ReferenceLosses(agent, data), list[Tensor]()
    agent.update_target_stats = targets.append
    metrics = agent.update(data, 0)
    expected = torch.stack([reference.compute_target(row) for row in range(ROWS)])
    torch.testing.assert_close(targets[0].double(), expected, rtol=1e-4, atol=1e-4)
    assert not targets[0].requires_grad

    critic_loss = reference.compute_critic_loss()
    assert metrics["critic_loss"].item() == pytest.approx(critic_loss.item(), rel=1e-4)
    modules = torch.nn.ModuleList([agent.representation, agent.critic])
    assert_gradients(
        modules, critic_loss, torch.nn.ModuleList([reference.agent.representation, reference.agent.critic])
    )

    actor_loss, log_prob = reference.compute_actor_loss(options.get("saturation_coef", 0.0))
    assert metrics["actor_loss"].item() == pytest.approx(actor_loss.item(), rel=1e-4)
    assert_gradients(agent.actor, actor_loss, reference.agent.actor)
    if agent_name == "sac":
        assert metrics["entropy"].item() == pytest.approx(-log_prob.item(), rel=1e-4)
        assert agent.log_temperature.grad.item() == pytest.approx(-0.1 * (log_prob.item() - ACTION_SIZE), rel=1e-4)


@EACH_AGENT
@pytest.mark.parametrize("view", [0, 1])
def test_a_single_camera_gives_the_single_view_state_of_training(agent_name: str, view: int) -> None:
    agent, data = make_static_agent(agent_name), make_batch(ROWS)
    mask = F.one_hot(torch.tensor([view]), 2).bool().expand(ROWS, 2)
    features = agent.representation.encode(data.views, data.mask)
    states, weights = agent.representation.encode_single_views(features)
    torch.testing.assert_close(agent.representation.encode(data.views, mask).state, states[view])
    torch.testing.assert_close(weights, torch.full((2, ROWS), WEIGHT / 2))
    action = agent.act(data.views, mask, step=0, explore=False)
    torch.testing.assert_close(action, agent.actor(states[view])[:, :ACTION_SIZE].tanh())
    assert not torch.allclose(action, agent.act(data.views, data.mask, step=0, explore=False))


@EACH_AGENT
def test_without_single_views_the_losses_are_those_of_all_views(agent_name: str) -> None:
    agent, data = make_static_agent(agent_name), make_batch(ROWS)
    agent.representation.config = MADConfig(single_view_weight=0.0)
    baseline = make_static_agent(agent_name)
    baseline.get_training_inputs = lambda features: TrainingInputs(features.state)
    metrics, expected = (instance.update(data, 0) for instance in (agent, baseline))
    for name, value in expected.items():
        torch.testing.assert_close(metrics[name], value, rtol=1e-4, atol=1e-5)


def test_the_state_without_a_projection_is_the_sum_of_the_convolutions() -> None:
    encoder = MAD(IMAGE_SHAPE, MADConfig(trunk="tiny", projection=False))
    views = make_batch(ROWS).views
    features = encoder.encode(views)
    expected = sum(encoder.trunk(views[:, view].float() / 255 - 0.5) for view in range(2))
    torch.testing.assert_close(features.state, expected)
    assert features.state.shape == (ROWS, encoder.state_dim)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("ppo+mad", {}, "got ppo"),
        ("sac+mad", {"agent": {"critic_trains_encoder": False}}, "representation=mad has no auxiliary loss"),
        ("sac+mad", {"representation": {"single_view_weight": 1.5}}, "single_view_weight: expected 0 to 1, got 1.5"),
    ],
)
def test_an_incompatible_run_is_refused(method: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_overrides(make_config("toy/hidden_goal_continuous", method=method), settings)
