"""Meta-World environments with tiny images, and Meta-World's scripted experts."""

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from metaworld.policies import ENV_POLICY_MAP

from manyview.envs import make
from manyview.envs.metaworld.env import MetaWorld
from manyview.envs.views import Observation


def make_small_env(name: str, *, action_repeat: int = 1) -> gym.Env[Observation, Any]:
    """Return a task with one tiny image per observation, for tests of its physics."""
    return make(
        f"metaworld/{name}",
        views=("gripperPOV",),
        image_size=16,
        frame_stack=1,
        action_repeat=action_repeat,
        render_quality="fast",
    )


def get_metaworld_env(env: gym.Env[Observation, Any]) -> MetaWorld:
    """Return the environment below all wrappers."""
    unwrapped: Any = env.unwrapped
    assert isinstance(unwrapped, MetaWorld)
    return unwrapped


class ScriptedExpert:
    """Policy that acts on the true positions, which the observations do not contain."""

    def __init__(self, name: str, env: gym.Env[Observation, Any]) -> None:
        self._policy, self._env = ENV_POLICY_MAP[f"{name}-v3"](), env

    def act(self) -> Any:
        simulator_wrapper: Any = get_metaworld_env(self._env)._simulator
        simulator = simulator_wrapper._env
        state = simulator._get_curr_obs_combined_no_goal()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experts warn when an action is out of bounds
            action = self._policy.get_action(np.hstack((state, state, simulator._target_pos)))
        return np.clip(action, -1, 1).astype(np.float32)
