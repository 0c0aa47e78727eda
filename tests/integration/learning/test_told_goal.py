"""A goal that only a state vector tells is learned with the vector, and not without."""

from typing import Any

import pytest

from manyview.envs.toy import ToldGoal
from tests.support.toys import train_and_evaluate

STATE: dict[str, Any] = {"env": {"state": ["goal"]}}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["drqv2+none", pytest.param("sac+mem", marks=pytest.mark.long)])
def test_an_agent_learns_to_say_what_it_is_told(method: str) -> None:
    told = train_and_evaluate("toy/told_goal_continuous", method, frames=1_500, changes=STATE)
    assert told > 0.8
    bound = ToldGoal(actions="continuous").max_reward_without_state
    assert train_and_evaluate("toy/told_goal_continuous", method, frames=1_500) < bound + 0.1


@pytest.mark.slow
def test_so_does_ppo() -> None:
    told = train_and_evaluate("toy/told_goal", "ppo+none", frames=8_000, changes=STATE)
    assert told > 0.6
    assert train_and_evaluate("toy/told_goal", "ppo+none", frames=8_000) < ToldGoal().max_reward_without_state + 0.1
