"""What the attributes of a bonus ask for, each by itself, and the hook of a representation."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyview.methods import Bonus, BonusConfig, PixelEncoder, PixelEncoderConfig
from manyview.nn.optim import make_adam, optimizer_step
from tests.support.batches import ACTION_SIZE, IMAGE_SHAPE, make_agent, make_batch


class Recorder(Bonus):
    """A bonus that states nothing, and keeps the features that it is given."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.config, self.given = BonusConfig(), list[Any]()
        for name, value in attributes.items():
            setattr(self, name, value)

    def compute(self, batch: Any, features: Any, values: Tensor) -> Tensor:
        self.given.append(features)
        return torch.zeros_like(values + batch.reward_ext)


def update_with(**attributes: Any) -> tuple[Any, Recorder]:
    learner, bonus = make_agent("sac", "none", encoder_tau=0.5), Recorder(**attributes)
    learner.bonus = bonus
    learner.update(make_batch(), 0)
    return learner, bonus


def test_a_bonus_that_states_nothing_gets_no_features_and_no_common_shift() -> None:
    learner, bonus = update_with()
    assert bonus.given == [None]
    assert learner.shift_mode == "each"
    assert bonus.update(make_batch()) == {}


@pytest.mark.parametrize("source", ["online", "target"])
def test_features_do_not_imply_a_common_shift(source: str) -> None:
    learner, bonus = update_with(feature_source=source)
    assert bonus.given[0].state.shape == (16, learner.representation.state_dim)
    assert learner.shift_mode == "each"


def test_a_comparison_of_rows_asks_for_a_common_shift_alone() -> None:
    learner, bonus = update_with(compares_rows=True)
    assert bonus.given == [None]
    assert learner.shift_mode == "common"


class WithDecoder(PixelEncoder):
    """A representation with a network that its own optimizer trains, to predict the action."""

    def __init__(self) -> None:
        super().__init__(2, IMAGE_SHAPE, PixelEncoderConfig(trunk="tiny", latent_dim=8))
        self.decoder = nn.Linear(self.state_dim, ACTION_SIZE)
        self.optimizer = make_adam(self.decoder.parameters(), lr=1e-2)

    def update(self, batch: Any, features: Any) -> dict[str, Tensor]:
        loss = (self.decoder(features.state.detach()) - batch.action).square().mean()
        optimizer_step(loss, self.optimizer)
        return {"decoder_loss": loss.detach()}


@pytest.mark.parametrize("kind", ["drqv2", "sac"])
def test_a_representation_updates_its_own_networks_once_per_update(kind: str) -> None:
    learners = [make_agent(kind, "none") for _ in range(2)]
    torch.manual_seed(0)
    representation = WithDecoder()
    for learner in learners:  # the same agent, with and without the hook
        learner.representation = learner.target_representation = deepcopy(representation)
        learner.critic_optimizer = learner.make_critic_optimizer(learner.critic, 1e-3)
    plain: Any = learners[1].representation
    plain.update = lambda *_: {}
    metrics = [learner.update(make_batch(), 0) for learner in learners]
    trained: Any = learners[0].representation
    assert metrics[0].keys() - metrics[1].keys() == {"decoder_loss"}
    moved = trained.decoder.weight - representation.decoder.weight
    assert moved.abs().max().isclose(torch.tensor(1e-2), rtol=1e-3), "one step of Adam moves by its learning rate"
    assert plain.decoder.weight.equal(representation.decoder.weight)
    assert all(map(torch.equal, trained.trunk.parameters(), plain.trunk.parameters()))


def test_a_reward_that_is_not_implemented_names_the_agents_that_fit() -> None:
    with pytest.raises(NotImplementedError, match="Bonus has no reward of replay batches: expected an on-policy agent"):
        Bonus().compute(make_batch(), None, torch.zeros(16))
    rollout: Any = None
    with pytest.raises(NotImplementedError, match="Bonus has no reward of rollouts: expected an off-policy agent"):
        Bonus().compute_rollout(rollout, None, window=None)
