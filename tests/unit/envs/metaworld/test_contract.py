"""Meta-World: environment and vector contracts."""

from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from manyview.envs import make, make_vector
from manyview.envs.testing import EnvironmentContract, VectorContract
from manyview.envs.views import Observation


class TestDrawerOpenContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("metaworld/drawer-open", render_quality="fast")


class TestPickPlaceContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("metaworld/pick-place", render_quality="fast", action_repeat=3)


class TestHammerContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("metaworld/hammer", render_quality="fast", views=("topview", "behindGripper"), frame_stack=1)


class TestAssemblyContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("metaworld/assembly", render_quality="fast", image_size=64)


class TestStandardQualityContract(EnvironmentContract):
    """One small view and long steps: on a CPU, shadows cost 100 ms per image."""

    episode_end = "truncated"
    steps = 5

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("metaworld/window-close", views=("corner4",), image_size=32, action_repeat=20)


class TestVectorInProcessesContract(VectorContract):
    num_envs = 2

    def make_vector(self) -> VectorEnv[Any, Any, Any]:
        return make_vector(
            "metaworld/reach", self.num_envs, processes=True, render_quality="fast", image_size=32, action_repeat=10
        )
