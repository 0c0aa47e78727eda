"""Exploration noise: its distribution over steps, its state and its schedule."""

import math
from typing import Any

import pytest
import torch

from manyview.agents import DrQv2Config
from manyview.agents.noise import NUM_OCTAVES, sample_pink_noise
from tests.support.batches import ACTIONS, agent, batch

KINDS = ("drqv2", "sac")


def count_unchanged_octaves(step: int, lag: int) -> int:
    """How many octaves keep their value from `step` to `step` + `lag`, by walking through the steps between."""
    unchanged = 0
    for octave in range(NUM_OCTAVES):
        period = 2**octave
        changes = [at for at in range(step + 1, step + lag + 1) if at % period == (period // 2 if octave else 0)]
        unchanged += not changes
    return unchanged


@pytest.mark.parametrize("step", [0, 3, 300, 10**6])
@pytest.mark.parametrize("lag", [0, 1, 2, 7, 64, 700])
def test_pink_noise_has_the_covariance_of_the_octaves_that_have_not_changed(step: int, lag: int) -> None:
    one, other = (sample_pink_noise(5, at, 8_000, 2).double() for at in (step, step + lag))
    expected = count_unchanged_octaves(step, lag) / NUM_OCTAVES
    assert (one * other).mean().item() == pytest.approx(expected, abs=4 * math.sqrt(2 / 16_000))
    assert one.mean().item() == pytest.approx(0, abs=4 / math.sqrt(16_000))
    assert (one[:, 0] * other[:, 1]).mean().item() == pytest.approx(0, abs=4 / math.sqrt(8_000)), "actions are alone"
    assert (one[1:] * other[:-1]).mean().item() == pytest.approx(0, abs=4 / math.sqrt(16_000)), "so are environments"


def test_the_power_of_pink_noise_falls_as_one_over_the_frequency() -> None:
    noise = torch.stack([sample_pink_noise(1, step, 256, 1)[:, 0] for step in range(512)]).double()  # [T, E]
    power = torch.fft.rfft(noise, dim=0).abs().square().mean(1)[1:]  # [T / 2]
    frequency = torch.arange(1, len(power) + 1).double()
    x, y = frequency.log(), power.log()
    # Each octave of frequencies counts alike.
    weight = 1 / frequency
    x, y = x - (weight * x).sum() / weight.sum(), y - (weight * y).sum() / weight.sum()
    assert ((weight * x * y).sum() / (weight * x * x).sum()).item() == pytest.approx(-1, abs=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_exploring_adds_the_pink_noise_of_the_step(kind: str) -> None:
    learner, data = agent(kind, "none", noise_color="pink", seed=7), batch()
    noise = sample_pink_noise(7, 40, len(data.mask), ACTIONS)
    out = learner.actor(learner.representation.encode(data.views).state)
    if kind == "drqv2":
        expected = (out.tanh() + (1 - 0.9 * 40 / 100_000) * noise).clamp(-1, 1)
    else:
        mean, log_std = out.chunk(2, dim=1)
        expected = (mean + (-10 + 6 * (log_std.tanh() + 1)).exp() * noise).tanh()
    generator_state = learner.generator.get_state()
    torch.testing.assert_close(learner.act(data.views, data.mask, step=40, explore=True), expected)
    assert torch.equal(learner.generator.get_state(), generator_state), "batches do not depend on how often it acts"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("color", ["white", "pink"])
def test_a_restored_agent_continues_its_noise_bit_for_bit(kind: str, color: str) -> None:
    settings: dict[str, Any] = {"noise_color": color}
    if kind == "drqv2":
        settings |= {"normalize_actor_loss": True, "std_warmup_steps": 2}
    original, restored = (agent(kind, "none", seed=seed, **settings) for seed in (0, 1))
    data = batch()

    def advance(learner: Any, step: int) -> torch.Tensor:
        action: torch.Tensor = learner.act(data.views, data.mask, step=step, explore=True)
        learner.update(batch(seed=step)._replace(reward_ext=50 * data.reward_ext), step)
        return action

    for step in range(3):
        advance(original, step)
    restored.load_state(original.get_state())
    for step in range(3, 6):
        assert torch.equal(advance(original, step), advance(restored, step))
    assert all(torch.equal(*pair) for pair in zip(original.parameters(), restored.parameters(), strict=True))


def test_an_actor_process_has_pink_noise_of_its_own() -> None:
    """It differs from the learner only by the seed of its generator."""
    learner, actor, data = (
        agent("drqv2", "none", noise_color="pink"),
        agent("drqv2", "none", noise_color="pink"),
        batch(),
    )
    actor.generator.manual_seed(3)
    one, other = (part.act(data.views, data.mask, step=9, explore=True) for part in (learner, actor))
    assert (one != other).any(1).all()


@pytest.mark.parametrize(("step", "std"), [(0, 1.0), (100, 1.0), (101, 0.991), (150, 0.55), (200, 0.1), (10_000, 0.1)])
def test_the_noise_decays_after_its_warmup(step: int, std: float) -> None:
    assert DrQv2Config(std_steps=100, std_warmup_steps=100).compute_std(step) == pytest.approx(std)
