"""A task whose steps take their time, and hang for as long as a file is there."""

import os
from pathlib import Path
from time import sleep
from typing import Any

import gymnasium as gym

from manyview.envs import make
from manyview.envs.views import Observation

STEP_S = 0.02


class Hanging(gym.Wrapper[Observation, Any, Observation, Any]):
    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        while Path(os.environ["HANG"]).exists():
            sleep(0.1)
        sleep(STEP_S)
        return self.env.step(action)


def hanging() -> Hanging:
    return Hanging(make("toy/identity_continuous"))


def never_elsewhere() -> Hanging:
    """In an actor's process it cannot be made."""
    if b"ray::" in Path("/proc/self/cmdline").read_bytes():
        raise RuntimeError("the licence of the simulator is taken")
    return hanging()
