"""What the toys share: small grey pictures of a number, drawn once."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces

from manyview.envs.views import Image, MultiViewEnv, Observation, State, View, generator_state, restored_generator

SIZE = 20
"""Pixels a side: the paper's four convolutions need at least 15."""


def bars(count: int, *, upright: bool, size: int = SIZE) -> list[Image]:
    """`count` pictures [size, size, 1], each with one white bar at its own place."""
    edges = np.linspace(0, size, count + 1).round().astype(int)
    pictures = []
    for begin, end in pairwise(edges):
        picture = np.zeros((size, size, 1), np.uint8)
        picture[(slice(None), slice(begin, end)) if upright else (slice(begin, end), slice(None))] = 255
        picture.flags.writeable = False
        pictures.append(picture)
    return pictures


class Toy(MultiViewEnv):
    """A toy says what it draws, how an episode begins and how a step goes; its whole state is some integers."""

    terminal = False
    """Whether the last step ends the world, or only the clock runs out."""

    def __init__(self, names: Sequence[str], action_space: spaces.Space[Any], *, episode_steps: int) -> None:
        super().__init__([View(name, SIZE, SIZE, 1, fill=(0,)) for name in names], action_space)
        self.episode_steps = episode_steps
        self._numbers: dict[str, int] = {}
        """The state, by name."""

    @abstractmethod
    def begin(self) -> dict[str, int]:
        """The state an episode starts from."""

    @abstractmethod
    def act(self, action: Any) -> tuple[float, dict[str, Any]]:
        """Change the state; the reward and the info of the step."""

    @abstractmethod
    def pictures(self) -> dict[str, Image]: ...

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._numbers = {"step": 0, **self.begin()}
        return self._drawn(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        reward, info = self.act(action)
        self._numbers["step"] += 1
        last = self._numbers["step"] >= self.episode_steps
        return self._drawn(), reward, last and self.terminal, last and not self.terminal, info

    def _drawn(self) -> Observation:
        return self.observe({name: picture.copy() for name, picture in self.pictures().items()})

    def snapshot(self) -> State:
        return {"numbers": dict(self._numbers), "rng": generator_state(self.np_random)}

    def restore(self, state: State) -> Observation:
        self._numbers = {name: int(number) for name, number in state["numbers"].items()}
        self.np_random = restored_generator(state["rng"])
        return self._drawn()
