"""The attributes of a bonus, one at a time, and the update hook of a representation."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyview.methods import Bonus, BonusConfig, PixelEncoder, PixelEncoderConfig
from manyview.nn.optim import make_adam, optimizer_step
from tests.support.batches import ACTION_SIZE, IMAGE_SHAPE, make_agent, make_batch


class RecordingBonus(Bonus):
    """Bonus with default attributes that records the features of each call."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.config, self.received_features = BonusConfig(), list[Any]()
        for name, value in attributes.items():
            setattr(self, name, value)

    def compute(self, batch: Any, features: Any, values: Tensor) -> Tensor:
        self.received_features.append(features)
        return torch.zeros_like(values + batch.reward_ext)


def update_agent(**attributes: Any) -> tuple[Any, RecordingBonus]:
    agent, bonus = make_agent("sac", "none", encoder_tau=0.5), RecordingBonus(**attributes)
    agent.bonus = bonus
    agent.update(make_batch(), 0)
    return agent, bonus


def test_a_bonus_with_default_attributes_gets_no_features_and_no_common_shift() -> None:
    agent, bonus = update_agent()
    assert bonus.received_features == [None]
    assert agent.shift_mode == "each"
    assert bonus.update(make_batch()) == {}


@pytest.mark.parametrize("source", ["online", "target"])
def test_features_do_not_imply_a_common_shift(source: str) -> None:
    agent, bonus = update_agent(feature_source=source)
    assert bonus.received_features[0].state.shape == (16, agent.representation.state_dim)
    assert agent.shift_mode == "each"


def test_compares_rows_implies_a_common_shift_alone() -> None:
    agent, bonus = update_agent(compares_rows=True)
    assert bonus.received_features == [None]
    assert agent.shift_mode == "common"


class EncoderWithDecoder(PixelEncoder):
    """Pixel encoder with an action decoder that has its own optimizer."""

    def __init__(self) -> None:
        super().__init__(2, IMAGE_SHAPE, PixelEncoderConfig(trunk="tiny", latent_dim=8))
        self.decoder = nn.Linear(self.state_dim, ACTION_SIZE)
        self.optimizer = make_adam(self.decoder.parameters(), lr=1e-2)

    def update(self, batch: Any, features: Any) -> dict[str, Tensor]:
        loss = (self.decoder(features.state.detach()) - batch.action).square().mean()
        optimizer_step(loss, self.optimizer)
        return {"decoder_loss": loss.detach()}


@pytest.mark.parametrize("agent_name", ["drqv2", "sac"])
def test_a_representation_updates_its_own_networks_once_per_update(agent_name: str) -> None:
    agents = [make_agent(agent_name, "none") for _ in range(2)]
    torch.manual_seed(0)
    representation = EncoderWithDecoder()
    for agent in agents:  # the same agent, with and without the hook
        agent.representation = agent.target_representation = deepcopy(representation)
        agent.critic_optimizer = agent.make_critic_optimizer(agent.critic, 1e-3)
    plain_representation: Any = agents[1].representation
    plain_representation.update = lambda *_: {}
    metrics = [agent.update(make_batch(), 0) for agent in agents]
    trained_representation: Any = agents[0].representation
    assert metrics[0].keys() - metrics[1].keys() == {"decoder_loss"}
    change = trained_representation.decoder.weight - representation.decoder.weight
    assert change.abs().max().isclose(torch.tensor(1e-2), rtol=1e-3), "one step of Adam moves by its learning rate"
    assert plain_representation.decoder.weight.equal(representation.decoder.weight)
    assert all(map(torch.equal, trained_representation.trunk.parameters(), plain_representation.trunk.parameters()))


def test_a_reward_that_is_not_implemented_names_the_agents_that_fit() -> None:
    with pytest.raises(NotImplementedError, match="Bonus has no reward of replay batches: expected an on-policy agent"):
        Bonus().compute(make_batch(), None, torch.zeros(16))
    rollout: Any = None
    with pytest.raises(NotImplementedError, match="Bonus has no reward of rollouts: expected an off-policy agent"):
        Bonus().compute_rollout(rollout, None, window=None)
