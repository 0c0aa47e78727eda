"""The contracts of manyview for the parts and the task of this package."""

from typing import Any, ClassVar

import gymnasium as gym

import manyview
from manyview.envs.testing import EnvironmentContract
from manyview.training.testing import CompositionContract


class TestSurprise(CompositionContract):
    bonus = "surprise"
    agent = "sac"
    updates = 10


class TestSurpriseOfRollouts(CompositionContract):
    bonus, agent, representation, updates = "surprise", "ppo", "pixel", 10


class TestAutoencoder(CompositionContract):
    representation, bonus, updates = "autoencoder", "none", 10
    settings: ClassVar[dict[str, Any]] = {"representation": {"autoencoder": {"target_size": 4}}}


class TestCorridor(EnvironmentContract):
    def make_env(self) -> gym.Env[Any, Any]:
        return manyview.make("example/corridor")
