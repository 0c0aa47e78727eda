"""DrAC: both loss terms and their gradients, and the bandit of UCB-DrAC."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import log, sqrt
from typing import Any

import pytest
import torch
from torch import nn

from manyview.agents import PPO, PPOConfig
from manyview.agents.distributions import Categorical, Gaussian
from manyview.config.presets import load_preset
from manyview.data import Minibatch
from manyview.data.action_spec import ActionSpec
from manyview.envs import list_tasks
from manyview.methods import REPRESENTATIONS, BuildContext, DrAC, UCBDrACConfig
from manyview.methods.representations.drac import ARMS
from manyview.nn.module_state import get_module_state, load_module_state
from manyview.training import factory, make_trainer
from manyview.training.on_policy import OnPolicyTrainer
from tests.support.runs import make_short_rollout_config

ROWS, ACTION_SIZE = 12, 3


def make_context(image_shape: tuple[int, int, int] = (1, 20, 20), *, frame_stack: int = 1) -> BuildContext:
    actions = ActionSpec(ACTION_SIZE, discrete=True)
    return BuildContext(
        view_names=("side", "back"), image_shape=image_shape, frame_stack=frame_stack, actions=actions, seed=3
    )


def make_drac(name: str = "drac", context: BuildContext | None = None, **settings: Any) -> DrAC:
    torch.manual_seed(0)
    part = REPRESENTATIONS[name]
    drac: DrAC = part.build(part.config(trunk="tiny", latent_dim=8, **settings), context or make_context())
    return drac


def make_minibatch(agent: PPO, *, rows: int = ROWS) -> Minibatch:
    generator = torch.Generator().manual_seed(1)
    views = torch.randint(256, (rows, 2, 1, 20, 20), dtype=torch.uint8, generator=generator)
    mask = torch.ones(rows, 2, dtype=torch.bool)
    mask[::3, 1] = False
    action, log_prob, value, _ = agent.act_and_value(views, mask, step=0)
    advantage = torch.randn(rows, generator=generator)
    return Minibatch(
        views, mask, action, log_prob, value, advantage, value + advantage, None, None, None, torch.ones(rows).bool()
    )


def make_agent(drac: DrAC, *, discrete: bool = True) -> PPO:
    agent = PPO(drac, ActionSpec(ACTION_SIZE, discrete=discrete), PPOConfig(hidden=16, batch_size=ROWS), num_envs=2)
    nn.init.normal_([*agent.policy.parameters()][-2])  # weights of the last layer: far from uniform
    return agent


@contextmanager
def record_calls(owner: Any, name: str) -> Iterator[list[tuple[Any, Any]]]:
    """Record arguments and result of every call of a method of `owner`."""
    method, calls = getattr(owner, name), list[tuple[Any, Any]]()

    def call(*args: Any, **options: Any) -> Any:
        calls.append((args, method(*args, **options)))
        return calls[-1][1]

    setattr(owner, name, call)
    yield calls
    delattr(owner, name)


@pytest.mark.parametrize("discrete", [True, False])
def test_both_loss_terms_equal_their_definitions(discrete: bool) -> None:
    agent = make_agent(make_drac(augmentation="crop", coef=0.3), discrete=discrete)
    batch = make_minibatch(agent)
    features = agent.representation.encode(batch.views, batch.mask)
    distribution, value = agent.evaluate(features.state)
    with record_calls(distribution, "sample") as samples, record_calls(agent.representation, "encode") as encodings:
        loss, metrics = agent.compute_representation_loss(batch, features, distribution, value)
    ((_, action),), (((augmented, mask), outputs),) = samples, encodings
    assert not augmented.equal(batch.views)
    assert mask.equal(batch.mask)
    policy_sum = value_sum = 0.0
    policy, value_head = (nn.Sequential(*head.double().requires_grad_(False)) for head in (agent.policy, agent.value))
    for row in range(ROWS):
        state = outputs.state[row].detach().double()
        output = policy(state)
        if discrete:
            policy_sum -= float(output[action[row]] - output.exp().sum().log())
        else:
            std = agent.log_std.detach().double().exp()
            policy_sum += float((0.5 * ((action[row] - output) / std) ** 2 + std.log() + 0.5 * log(2 * torch.pi)).sum())
        value_sum += 0.5 * float(value[row].detach() - value_head(state)) ** 2
    assert float(metrics["drac_policy_loss"]) == pytest.approx(policy_sum / ROWS, rel=1e-5)
    assert float(metrics["drac_value_loss"]) == pytest.approx(value_sum / ROWS, rel=1e-5)
    assert float(loss.detach()) == pytest.approx(0.3 * (policy_sum + value_sum) / ROWS, rel=1e-5)


@pytest.mark.parametrize("discrete", [True, False])
def test_outputs_for_the_clean_images_have_no_gradient(discrete: bool) -> None:
    drac = make_drac()
    batch = make_minibatch(make_agent(drac))
    clean, augmented = (torch.randn(ROWS, ACTION_SIZE, requires_grad=True) for _ in range(2))
    value, augmented_value = (torch.randn(ROWS, requires_grad=True) for _ in range(2))
    scale = torch.zeros(ACTION_SIZE)
    make_distribution = Categorical if discrete else lambda mean: Gaussian(mean, scale)
    loss, _ = drac.compute_policy_loss(
        batch, make_distribution(clean), value, lambda _: (make_distribution(augmented), augmented_value)
    )
    loss.backward()
    assert clean.grad is None
    assert value.grad is None
    assert augmented.grad is not None
    assert augmented_value.grad is not None


def test_an_update_of_ppo_adds_the_gradient_of_the_drac_loss() -> None:
    """In every network the gradient is that of PPO plus that of the DrAC loss."""
    agents = {coef: make_agent(make_drac(coef=coef)) for coef in (0.0, 0.5)}
    for agent in agents.values():
        agent.config = replace(agent.config, max_grad_norm=1e9)
        metrics = agent.update(make_minibatch(agent))
        assert {"drac_policy_loss", "drac_value_loss"} <= metrics.keys()
    drac_agent = make_agent(make_drac(coef=0.5))
    batch = make_minibatch(drac_agent)
    features = drac_agent.representation.encode(batch.views, batch.mask)
    drac_agent.compute_representation_loss(batch, features, *drac_agent.evaluate(features.state))[0].backward()
    for ppo_parameter, parameter, drac_parameter in zip(
        *(agent.parameters() for agent in (*agents.values(), drac_agent)), strict=True
    ):
        if ppo_parameter.numel():
            assert drac_parameter.grad.any()
            torch.testing.assert_close(parameter.grad, ppo_parameter.grad + drac_parameter.grad, rtol=1e-3, atol=1e-6)


def test_actions_are_drawn_from_the_policy_of_the_clean_images() -> None:
    drac, probabilities = make_drac(), torch.tensor([0.7, 0.2, 0.1])
    batch = make_minibatch(make_agent(drac), rows=400)
    value, samples = torch.zeros(400), list[Any]()
    for _ in range(10):
        distribution = Categorical(probabilities.log().expand(400, -1))
        with record_calls(distribution, "sample") as calls:
            drac.compute_policy_loss(batch, distribution, value, lambda _: (Categorical(torch.zeros(400, 3)), value))
        samples += [action for _, action in calls]
    assert not samples[0].equal(samples[1])
    frequencies = torch.cat(samples).bincount(minlength=3) / 4_000
    torch.testing.assert_close(frequencies, probabilities, atol=0.02, rtol=0)


def test_augmentations_are_drawn_for_every_image_and_again_for_every_minibatch() -> None:
    agent = make_agent(make_drac(augmentation="crop"))
    batch = make_minibatch(agent, rows=8)
    views = batch.views[:1, :1].expand(8, 2, -1, -1, -1).contiguous()
    batch = batch._replace(views=views)
    state = agent.representation.encode(batch.views, batch.mask).state
    augmented_views = []
    for _ in range(2):
        with record_calls(agent.representation, "encode") as encodings:
            agent.compute_representation_loss(
                batch, agent.representation.encode(views, batch.mask), *agent.evaluate(state)
            )
        augmented_views.append(encodings[-1][0][0])
    assert len({image.numpy().tobytes() for image in augmented_views[0].flatten(0, 1)}) > 10, (
        "of 16, each by its own draw"
    )
    assert not augmented_views[0].equal(augmented_views[1])


class ReferenceBandit:
    """Bandit of the authors' code, in Python floats."""

    def __init__(self, coef: float, window: int) -> None:
        self.coef, self.total = coef, 1
        self.counts, self.values, self.current = [1] * 8, [0.0] * 8, -1
        self.returns = [deque[float](maxlen=window) for _ in range(8)]

    def compute_bounds(self) -> list[float]:
        return [
            value + self.coef * sqrt(log(self.total) / count)
            for value, count in zip(self.values, self.counts, strict=True)
        ]

    def step(self, mean_return: float) -> int:
        if self.current >= 0:
            self.total += 1
            self.counts[self.current] += 1
            window = self.returns[self.current]
            window.append(mean_return)
            self.values[self.current] = sum(window) / len(window)
        bounds = self.compute_bounds()
        self.current = bounds.index(max(bounds))
        return self.current


@pytest.mark.parametrize(("coef", "window"), [(0.1, 10), (0.6, 3)])
def test_the_bandit_equals_a_float64_loop(coef: float, window: int) -> None:
    drac: Any = make_drac("ucb_drac", exploration_coef=coef, window=window)
    reference, generator = ReferenceBandit(coef, window), torch.Generator().manual_seed(0)
    for _ in range(120):
        returns = 0.5 * torch.randn(4, 2, generator=generator)
        metrics = drac.start_updates(returns)
        arm = reference.step(float(returns.double().mean()))
        assert int(metrics["drac_augmentation"]) == arm
        assert drac.augmentation == ARMS[arm]
        assert drac.counts.tolist() == reference.counts
        assert drac.compute_values().tolist() == pytest.approx(reference.values, abs=1e-6)
        assert drac.compute_ucb().tolist() == pytest.approx(reference.compute_bounds(), abs=1e-6)
        assert float(metrics["drac_share"]) == pytest.approx(reference.counts[arm] / reference.total)
    assert max(reference.counts) > window + 1, "a window was full"
    assert min(reference.counts) > 1, "all were tried"


def test_a_rollout_rewards_the_augmentation_of_the_updates_before_it() -> None:
    """A rollout rewards the last choice, then a new one is made for its updates."""
    config = make_short_rollout_config(
        "ppo+ucb_drac",
        schedule={"frames": 240},
        rollout={"envs": 2, "steps": 4},
        agent={"batch_size": 4, "epochs": 1},
        representation={"exploration_coef": 3.0},  # against returns of about 1: many changes
    )
    trainer = make_trainer(config)
    assert isinstance(trainer, OnPolicyTrainer)
    drac: Any = trainer.agent.representation
    reference, used_arms, expected_arms = ReferenceBandit(3.0, 10), list[str](), list[str]()
    with record_calls(drac, "start_updates") as starts, record_calls(drac, "compute_policy_loss") as losses:
        while trainer.counters.rollouts < 30:
            before = len(starts), len(losses)
            trainer.advance()
            if len(starts) > before[0]:
                assert trainer.rollout.is_full, "once the rollout is complete"
                returns = trainer.rollout.value + trainer.rollout.advantage
                expected_arms += [ARMS[reference.step(float(returns.double().mean()))]] * 2
            if len(losses) > before[1]:
                used_arms.append(drac.augmentation)
    trainer.close()
    assert len(starts) == 30
    assert used_arms == expected_arms
    assert len(set(used_arms)) > 4


def test_a_bandit_is_restored_in_the_middle_of_a_window() -> None:
    original, restored = (make_drac("ucb_drac", exploration_coef=0.5, window=4) for _ in range(2))
    generator = torch.Generator().manual_seed(5)
    rollouts = torch.randn(90, 4, 2, generator=generator)
    for returns in rollouts[:30]:
        original.start_updates(returns)
        original._draw_keys(torch.zeros(3))
    counts: Any = original.counts
    assert ((counts - 1) % 4).any()
    load_module_state(restored, get_module_state(original))
    for returns in rollouts[30:]:
        first, second = (drac.start_updates(returns) for drac in (original, restored))
        assert first == second
        assert original._draw_keys(torch.zeros(3)).equal(restored._draw_keys(torch.zeros(3)))
    assert restored.window.equal(original.window)  # type: ignore[operator, arg-type]


def test_images_that_an_augmentation_cannot_change_are_refused() -> None:
    with pytest.raises(ValueError, match="rotate needs square images"):
        make_drac("ucb_drac", make_context((3, 20, 24)))
    with pytest.raises(ValueError, match="expected 3 channels, got 4"):
        make_drac("drac", make_context((8, 20, 20), frame_stack=2), augmentation="grayscale")
    make_drac("drac", make_context((8, 20, 20), frame_stack=2), augmentation="cutout")
    make_drac("ucb_drac", make_context((6, 20, 20), frame_stack=2))


@pytest.mark.parametrize("settings", [{"coef": -0.1}, {"exploration_coef": -1.0}, {"window": 0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected at least"):
        UCBDrACConfig(**settings)


def test_the_preset_has_the_authors_constants() -> None:
    """They are in arguments.py of the authors' code, with 8 minibatches per rollout."""
    config = load_preset("ucb_drac", task="procgen/bigfish", method="ppo+ucb_drac", seed=1)
    agent, rollout, drac = config.agent, config.rollout, config.representation
    assert (agent.lr, agent.discount, agent.gae_lambda, agent.epochs) == (5e-4, 0.999, 0.95, 3)
    assert (agent.clip_coef, agent.entropy_coef, agent.value_coef, agent.max_grad_norm) == (0.2, 0.01, 0.5, 0.5)
    assert (rollout.envs, rollout.steps, agent.batch_size) == (64, 256, 64 * 256 // 8)
    assert (drac.trunk, agent.hidden, drac.coef, drac.exploration_coef, drac.window) == ("impala", 256, 0.1, 0.1, 10)
    assert (config.schedule.frames, config.env.frame_stack, agent.normalize_rewards) == (25_000_000, 1, True)
    settings = list_tasks()[config.task].settings
    assert factory.list_evaluation_levels(settings) == ("train", "test"), "evaluations see test levels too"
    assert not factory.build_derived_views(config, []).augmentations, "the policy sees the screen alone"
