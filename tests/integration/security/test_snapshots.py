"""Snapshots of a simulator that were made to do harm."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import manyview
from manyview.envs.views import NotRestorable, Observation, restore, snapshot

Env = gym.Env[Observation, Any]


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    made = manyview.make("dmc/ball_in_cup_catch", image_size=16)
    made.reset(seed=0)
    made.step(np.zeros(2, np.float32))
    yield made
    made.close()


def simulated(state: Any) -> Any:
    """The part of a snapshot that is the simulator's."""
    while "actions" not in state:
        state = state["env"]
    return state


HARMS: dict[str, Any] = {
    "a generator behind its memory": lambda own: own["rng_at_reset"]["state"].update(pos=10**9),  # numpy crashes
    "a million actions": lambda own: own.update(actions=np.zeros((10**6, 2), np.float32)),
    "actions of another shape": lambda own: own.update(actions=np.zeros((1, 3), np.float32)),
    "actions that are not numbers": lambda own: own.update(actions=np.full((1, 2), np.nan, np.float32)),
    "counts of something else": lambda own: own.update(counts={"x": 1}),
}


@pytest.mark.quality("X1")
@pytest.mark.simulator
@pytest.mark.parametrize("harm", HARMS)
def test_a_hostile_snapshot_is_refused_and_the_true_one_still_fits(env: Env, harm: str) -> None:
    state = snapshot(env)
    hostile = deepcopy(state)
    HARMS[harm](simulated(hostile))
    with pytest.raises((NotRestorable, ValueError)):
        restore(env, hostile)
    restore(env, state)
