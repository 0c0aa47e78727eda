"""A goal that only a state vector contains is learned with the vector, and not without."""

from typing import Any

import pytest

from manyview.envs.toy import ToldGoal
from tests.support.toys import train_and_evaluate

STATE_SETTINGS: dict[str, Any] = {"env": {"state": ["goal"]}}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["drqv2+none", pytest.param("sac+mem", marks=pytest.mark.long)])
def test_an_off_policy_agent_learns_told_goal(method: str) -> None:
    reward = train_and_evaluate("toy/told_goal_continuous", method, frames=1_500, changes=STATE_SETTINGS)
    assert reward > 0.8
    bound = ToldGoal(actions="continuous").max_reward_without_state
    assert train_and_evaluate("toy/told_goal_continuous", method, frames=1_500) < bound + 0.1


@pytest.mark.slow
def test_ppo_learns_told_goal() -> None:
    reward = train_and_evaluate("toy/told_goal", "ppo+none", frames=8_000, changes=STATE_SETTINGS)
    assert reward > 0.6
    assert train_and_evaluate("toy/told_goal", "ppo+none", frames=8_000) < ToldGoal().max_reward_without_state + 0.1
