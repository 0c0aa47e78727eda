"""Cheap environments, and Meta-World's own scripted experts to act in them."""

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from metaworld.policies import ENV_POLICY_MAP

from manyview.envs import make
from manyview.envs.metaworld.env import MetaWorld
from manyview.envs.views import Observation


def small(name: str, *, action_repeat: int = 1) -> gym.Env[Observation, Any]:
    """A task for tests of its physics: one tiny picture a step."""
    return make(
        f"metaworld/{name}",
        views=("gripperPOV",),
        image_size=16,
        frame_stack=1,
        action_repeat=action_repeat,
        render_quality="fast",
    )


def inside(env: gym.Env[Observation, Any]) -> MetaWorld:
    found: Any = env.unwrapped
    assert isinstance(found, MetaWorld)
    return found


class Expert:
    """Acts by the true positions, which no observation of ours has."""

    def __init__(self, name: str, env: gym.Env[Observation, Any]) -> None:
        self._policy, self._env = ENV_POLICY_MAP[f"{name}-v3"](), env

    def act(self) -> Any:
        wrapped: Any = inside(self._env)._simulator
        simulator = wrapped._env
        now = simulator._get_curr_obs_combined_no_goal()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experts overshoot, and say so
            action = self._policy.get_action(np.hstack((now, now, simulator._target_pos)))
        return np.clip(action, -1, 1).astype(np.float32)
