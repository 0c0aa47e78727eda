"""Decision D30: critic and representation share a loss, and neither drowns the other."""

import pytest
import torch

from manyview.mem import MEMRepresentation
from tests.support.batches import make_agent, make_batch


def test_large_rewards_do_not_drown_the_representation() -> None:
    """A thousand times the reward: the features keep their spread, which only the representation's loss asks for."""
    data = make_batch(64)
    spread = {}
    for factor in (1.0, 1000.0):
        learner = make_agent("sac", "mem")  # whose learning rate shows it within some updates
        for step in range(60):
            learner.update(data._replace(reward_ext=factor * data.reward_ext), step)
        assert isinstance(learner.representation, MEMRepresentation)
        spread[factor] = learner.representation.encode(data.views).specific.std(0).mean().item()
    assert spread[1000.0] > 0.8 * spread[1.0]


@pytest.mark.parametrize("kind", ["drqv2", "sac"])
def test_the_scale_is_the_variance_of_the_targets(kind: str) -> None:
    data = make_batch(64)._replace(reward_ext=1000 * make_batch(64).reward_ext, discount=torch.zeros(64))
    learner = make_agent(kind, "none")
    learner.update(data, 0)
    assert learner.representation_loss_scale == pytest.approx(data.reward_ext.var(correction=0).item(), rel=1e-4)


@pytest.mark.parametrize("kind", ["drqv2", "sac"])
def test_small_rewards_are_left_as_they_are(kind: str) -> None:
    learner = make_agent(kind, "mem")
    for step in range(3):
        learner.update(make_batch(), step)
    assert learner.representation_loss_scale == 1


@pytest.mark.parametrize("kind", ["drqv2", "sac"])
def test_a_critic_that_learns_alone_learns_the_same(kind: str) -> None:
    """Targets whose spread grows a hundredfold: Adam would remember gradients that were divided by less."""
    data = make_batch(64)
    seen, plain = make_agent(kind, "none"), make_agent(kind, "none")
    for step in range(6):
        now = data._replace(reward_ext=(100.0 if step > 3 else 1.0) * data.reward_ext)
        seen.update_target_stats(300 * data.reward_ext)
        for learner in (seen, plain):
            learner.update(now, step)
    assert seen.representation_loss_scale > 1000
    for one, other in zip(seen.critic.parameters(), plain.critic.parameters(), strict=True):
        assert one.equal(other)
