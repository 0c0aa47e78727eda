"""Environments with slow steps, which hang while the file named by `HANG` exists."""

import os
from pathlib import Path
from time import sleep
from typing import Any

import gymnasium as gym

from manyview.envs import make
from manyview.envs.views import Observation

STEP_S = 0.02


class HangingEnv(gym.Wrapper[Observation, Any, Observation, Any]):
    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        while Path(os.environ["HANG"]).exists():
            sleep(0.1)
        sleep(STEP_S)
        return self.env.step(action)


def make_hanging_env() -> HangingEnv:
    return HangingEnv(make("toy/identity_continuous"))


def make_env_outside_actors() -> HangingEnv:
    """Return a hanging environment; raise RuntimeError in a Ray actor."""
    if b"ray::" in Path("/proc/self/cmdline").read_bytes():
        raise RuntimeError("the licence of the simulator is taken")
    return make_hanging_env()
