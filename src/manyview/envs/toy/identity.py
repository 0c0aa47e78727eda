"""Say what you see: the cheapest proof that an agent learns from pictures at all."""

from typing import Any

import numpy as np
from gymnasium import spaces

from manyview.envs.toy.deep_sea import Actions
from manyview.envs.toy.toy import Toy, bars
from manyview.envs.views import Image


class Identity(Toy):
    """Both views show the same one of `targets` places, one as an upright bar, one as a lying bar.

    Discrete: 1 for naming the place. Continuous: 1 minus the distance to it, both on [-1, 1], and never below 0. The
    place changes at every step, so the best return is the number of steps.
    """

    def __init__(self, targets: int = 4, *, actions: Actions = "discrete", episode_steps: int = 10) -> None:
        space = spaces.Discrete(targets) if actions == "discrete" else spaces.Box(-1.0, 1.0, (1,), np.float32)
        super().__init__(("upright", "lying"), space, episode_steps=episode_steps)
        self._discrete, self._places = actions == "discrete", np.linspace(-1, 1, targets)
        self._upright, self._lying = bars(targets, upright=True), bars(targets, upright=False)

    def begin(self) -> dict[str, int]:
        return {"target": int(self.np_random.integers(len(self._places)))}

    def act(self, action: Any) -> tuple[float, dict[str, Any]]:
        target = self._numbers["target"]
        distance = float(action != target) if self._discrete else abs(float(action[0]) - float(self._places[target]))
        self._numbers.update(self.begin())
        return max(0.0, 1.0 - distance), {}

    def pictures(self) -> dict[str, Image]:
        target = self._numbers["target"]
        return {"upright": self._upright[target], "lying": self._lying[target]}
