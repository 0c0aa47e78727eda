"""An environment with images of the paper's size, without a simulator."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from manyview.envs import MASK, View
from manyview.envs.views import Observation, make_observation_space

VIEWS = tuple(View(name, 84, 84) for name in ("left", "right", "top"))


class LargeImageEnv(gym.Env[Observation, Any]):
    """Three cameras that show noise, in an endless episode."""

    metadata = {"views": VIEWS}  # noqa: RUF012

    def __init__(self) -> None:
        self.views = VIEWS
        self.observation_space = make_observation_space(VIEWS)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _observe(self) -> Observation:
        images = {view.name: self.np_random.integers(256, size=view.shape, dtype=np.uint8) for view in VIEWS}
        return {**images, MASK: np.ones(len(VIEWS), np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        return self._observe(), 0.0, False, False, {}


def make_large_image_env() -> LargeImageEnv:
    return LargeImageEnv()
