"""What the toys share: small grey pictures of a number, drawn once."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces

from manyview.envs.views import Image, MultiViewEnv, Observation, State, View
from manyview.utils.seeding import get_rng_state, restore_rng

IMAGE_SIZE = 20
"""Pixels a side: the paper's four convolutions need at least 15."""


def draw_bars(count: int, *, upright: bool, size: int = IMAGE_SIZE) -> list[Image]:
    """`count` pictures [size, size, 1], each with one white bar at its own place."""
    edges = np.linspace(0, size, count + 1).round().astype(int)
    images = []
    for start, end in pairwise(edges):
        image = np.zeros((size, size, 1), np.uint8)
        image[(slice(None), slice(start, end)) if upright else (slice(start, end), slice(None))] = 255
        image.flags.writeable = False
        images.append(image)
    return images


class ToyEnv(MultiViewEnv):
    """A toy says what it draws, how an episode begins and how a step goes; its whole state is some integers."""

    terminal = False
    """Whether the last step ends the world, or only the clock runs out."""

    def __init__(self, names: Sequence[str], action_space: spaces.Space[Any], *, episode_steps: int) -> None:
        super().__init__([View(name, IMAGE_SIZE, IMAGE_SIZE, 1, fill=(0,)) for name in names], action_space)
        self.episode_steps = episode_steps
        self._state: dict[str, int] = {}
        """The state, by name."""

    @abstractmethod
    def sample_initial_state(self) -> dict[str, int]:
        """The state an episode starts from."""

    @abstractmethod
    def apply_action(self, action: Any) -> tuple[float, dict[str, Any]]:
        """Change the state; the reward and the info of the step."""

    @abstractmethod
    def render_views(self) -> dict[str, Image]: ...

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._state = {"step": 0, **self.sample_initial_state()}
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        reward, info = self.apply_action(action)
        self._state["step"] += 1
        last = self._state["step"] >= self.episode_steps
        return self._observe(), reward, last and self.terminal, last and not self.terminal, info

    def _observe(self) -> Observation:
        return self.observe({name: picture.copy() for name, picture in self.render_views().items()})

    def snapshot(self) -> State:
        return {"numbers": dict(self._state), "rng": get_rng_state(self.np_random)}

    def restore(self, state: State) -> Observation:
        self._state = {name: int(number) for name, number in state["numbers"].items()}
        self.np_random = restore_rng(state["rng"])
        return self._observe()
