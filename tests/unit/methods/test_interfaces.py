"""What the attributes of a bonus ask for, each by itself."""

from typing import Any

import pytest
import torch
from torch import Tensor

from manyview.methods import Bonus, BonusConfig
from tests.support.batches import agent, batch


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
    learner, bonus = agent("sac", "none", encoder_tau=0.5), Recorder(**attributes)
    learner.bonus = bonus
    learner.update(batch(), 0)
    return learner, bonus


def test_a_bonus_that_states_nothing_gets_no_features_and_no_common_shift() -> None:
    learner, bonus = update_with()
    assert bonus.given == [None]
    assert learner.shift_mode == "each"
    assert bonus.update(batch()) == {}


@pytest.mark.parametrize("source", ["online", "target"])
def test_features_do_not_imply_a_common_shift(source: str) -> None:
    learner, bonus = update_with(feature_source=source)
    assert bonus.given[0].state.shape == (16, learner.representation.state_dim)
    assert learner.shift_mode == "each"


def test_a_comparison_of_rows_asks_for_a_common_shift_alone() -> None:
    learner, bonus = update_with(compares_rows=True)
    assert bonus.given == [None]
    assert learner.shift_mode == "common"


def test_a_reward_that_is_not_implemented_names_the_agents_that_fit() -> None:
    with pytest.raises(NotImplementedError, match="Bonus has no reward of replay batches: expected an on-policy agent"):
        Bonus().compute(batch(), None, torch.zeros(16))
    rollout: Any = None
    with pytest.raises(NotImplementedError, match="Bonus has no reward of rollouts: expected an off-policy agent"):
        Bonus().compute_rollout(rollout, None, window=None)
