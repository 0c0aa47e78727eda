"""Environments whose process exits at step 150, once or in every run."""

import os
from pathlib import Path
from typing import Any

import gymnasium as gym

from manyview.envs import make
from manyview.envs.views import Observation

CRASH_STEP = 150


class CrashingEnv(gym.Wrapper[Observation, Any, Observation, Any]):
    """Environment whose step `CRASH_STEP` exits the process.

    With `once`, it does so only until the file named by `CRASHED` exists.
    """

    def __init__(self, *, once: bool) -> None:
        super().__init__(make("toy/identity_continuous"))
        self._once, self._steps = once, 0

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        marker = Path(os.environ["CRASHED"])
        if self._steps == CRASH_STEP and not (self._once and marker.exists()):
            marker.touch()
            os._exit(9)
        return self.env.step(action)


def make_env_crashing_once() -> CrashingEnv:
    return CrashingEnv(once=True)


def make_env_crashing_always() -> CrashingEnv:
    return CrashingEnv(once=False)
