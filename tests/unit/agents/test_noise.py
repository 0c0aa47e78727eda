"""Exploration noise: its state and its schedule."""

from typing import Any

import pytest
import torch

from manyview.agents import DrQv2Config
from tests.support.batches import make_agent, make_batch


@pytest.mark.parametrize("kind", ["drqv2", "sac"])
def test_a_restored_agent_continues_its_noise_bit_for_bit(kind: str) -> None:
    original, restored = (make_agent(kind, "none", seed=seed) for seed in (0, 1))
    data = make_batch()

    def advance(agent: Any, step: int) -> torch.Tensor:
        action: torch.Tensor = agent.act(data.views, data.mask, step=step, explore=True)
        agent.update(make_batch(seed=step)._replace(reward_ext=50 * data.reward_ext), step)
        return action

    for step in range(3):
        advance(original, step)
    restored.load_state(original.get_state())
    for step in range(3, 6):
        assert torch.equal(advance(original, step), advance(restored, step))
    assert all(torch.equal(*pair) for pair in zip(original.parameters(), restored.parameters(), strict=True))


@pytest.mark.parametrize(("step", "std"), [(0, 1.0), (1, 0.991), (50, 0.55), (100, 0.1), (10_000, 0.1)])
def test_the_noise_decays_to_its_end(step: int, std: float) -> None:
    assert DrQv2Config(std_steps=100).compute_std(step) == pytest.approx(std)
