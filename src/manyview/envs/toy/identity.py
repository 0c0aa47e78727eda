"""Say what you see: the cheapest proof that an agent learns from pictures at all."""

from typing import Any

import numpy as np
from gymnasium import spaces

from manyview.envs.toy.deep_sea import ActionKind
from manyview.envs.toy.toy import ToyEnv, draw_bars
from manyview.envs.views import Image


class Identity(ToyEnv):
    """Both views show the same one of `targets` places, one as an upright bar, one as a lying bar.

    Discrete: 1 for naming the place. Continuous: 1 minus the distance to it, both on [-1, 1], and never below 0. The
    place changes at every step, so the best return is the number of steps.
    """

    def __init__(self, targets: int = 4, *, actions: ActionKind = "discrete", episode_steps: int = 10) -> None:
        space = spaces.Discrete(targets) if actions == "discrete" else spaces.Box(-1.0, 1.0, (1,), np.float32)
        super().__init__(("upright", "lying"), space, episode_steps=episode_steps)
        self._discrete, self._positions = actions == "discrete", np.linspace(-1, 1, targets)
        self._upright, self._lying = draw_bars(targets, upright=True), draw_bars(targets, upright=False)

    def sample_initial_state(self) -> dict[str, int]:
        return {"target": int(self.np_random.integers(len(self._positions)))}

    def apply_action(self, action: Any) -> tuple[float, dict[str, Any]]:
        target = self._state["target"]
        distance = float(action != target) if self._discrete else abs(float(action[0]) - float(self._positions[target]))
        self._state.update(self.sample_initial_state())
        return max(0.0, 1.0 - distance), {}

    def render_views(self) -> dict[str, Image]:
        target = self._state["target"]
        return {"upright": self._upright[target], "lying": self._lying[target]}
