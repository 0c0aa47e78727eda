"""Hostile snapshots of a simulator are rejected."""

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
    """Yield an environment after its first step."""
    instance = manyview.make("dmc/ball_in_cup_catch", image_size=16)
    instance.reset(seed=0)
    instance.step(np.zeros(2, np.float32))
    yield instance
    instance.close()


def get_simulator_state(state: Any) -> Any:
    """Return the simulator's part of a snapshot."""
    while "actions" not in state:
        state = state["env"]
    return state


CORRUPTIONS: dict[str, Any] = {
    "a generator behind its memory": lambda state: state["rng_at_reset"]["state"].update(pos=10**9),  # crashes numpy
    "a million actions": lambda state: state.update(actions=np.zeros((10**6, 2), np.float32)),
    "actions of another shape": lambda state: state.update(actions=np.zeros((1, 3), np.float32)),
    "actions that are not numbers": lambda state: state.update(actions=np.full((1, 2), np.nan, np.float32)),
    "counts of something else": lambda state: state.update(counts={"x": 1}),
}


@pytest.mark.quality("X1")
@pytest.mark.simulator
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_hostile_snapshot_is_refused_and_the_true_one_still_fits(env: Env, corruption: str) -> None:
    state = snapshot(env)
    hostile_state = deepcopy(state)
    CORRUPTIONS[corruption](get_simulator_state(hostile_state))
    with pytest.raises((NotRestorable, ValueError)):
        restore(env, hostile_state)
    restore(env, state)
