"""A task whose process dies in it: once, or whenever it comes to its 150th step."""

import os
from pathlib import Path
from typing import Any

import gymnasium as gym

from manyview.envs import make
from manyview.envs.views import Observation

STEPS = 150


class Crashing(gym.Wrapper[Observation, Any, Observation, Any]):
    def __init__(self, *, once: bool) -> None:
        super().__init__(make("toy/identity_continuous"))
        self._once, self._steps = once, 0

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        mark = Path(os.environ["CRASHED"])
        if self._steps == STEPS and not (self._once and mark.exists()):
            mark.touch()
            os._exit(9)
        return self.env.step(action)


def once() -> Crashing:
    return Crashing(once=True)


def always() -> Crashing:
    return Crashing(once=False)
