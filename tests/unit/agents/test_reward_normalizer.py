"""Decision D30: the scale between the losses of critic and representation."""

import pytest
import torch

from manyview.mem import MEMRepresentation
from tests.support.batches import make_agent, make_batch


def test_large_rewards_do_not_collapse_the_representation() -> None:
    """With 1,000 times the reward, features keep the spread that only their loss demands."""
    data = make_batch(64)
    spread = {}
    for factor in (1.0, 1000.0):
        agent = make_agent("sac", "mem")  # its learning rate shows the effect within 60 updates
        for step in range(60):
            agent.update(data._replace(reward_ext=factor * data.reward_ext), step)
        assert isinstance(agent.representation, MEMRepresentation)
        spread[factor] = agent.representation.encode(data.views).specific.std(0).mean().item()
    assert spread[1000.0] > 0.8 * spread[1.0]


@pytest.mark.parametrize("kind", ["drqv2", "sac"])
def test_the_scale_is_the_variance_of_the_targets(kind: str) -> None:
    data = make_batch(64)._replace(reward_ext=1000 * make_batch(64).reward_ext, discount=torch.zeros(64))
    agent = make_agent(kind, "none")
    agent.update(data, 0)
    assert agent.representation_loss_scale == pytest.approx(data.reward_ext.var(correction=0).item(), rel=1e-4)


@pytest.mark.parametrize("kind", ["drqv2", "sac"])
def test_the_scale_is_one_for_small_rewards(kind: str) -> None:
    agent = make_agent(kind, "mem")
    for step in range(3):
        agent.update(make_batch(), step)
    assert agent.representation_loss_scale == 1


@pytest.mark.parametrize("kind", ["drqv2", "sac"])
def test_the_scale_does_not_change_a_critic_that_learns_alone(kind: str) -> None:
    """If the spread grows, Adam would keep moments of gradients that were divided by less."""
    data = make_batch(64)
    scaled_agent, plain_agent = make_agent(kind, "none"), make_agent(kind, "none")
    for step in range(6):
        batch = data._replace(reward_ext=(100.0 if step > 3 else 1.0) * data.reward_ext)
        scaled_agent.update_target_stats(300 * data.reward_ext)
        for agent in (scaled_agent, plain_agent):
            agent.update(batch, step)
    assert scaled_agent.representation_loss_scale > 1000
    for scaled_parameter, parameter in zip(
        scaled_agent.critic.parameters(), plain_agent.critic.parameters(), strict=True
    ):
        assert scaled_parameter.equal(parameter)
