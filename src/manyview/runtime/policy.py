"""A policy that acts on observations, whatever computes its network."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import InputBuilder, Observation
from .spec import ACTIONS, MEMORY, NEXT_MEMORY, ActionBounds, PolicySpec

Arrays = dict[str, NDArray[Any]]


class Policy(ABC):
    """A trained policy with its frame stacks and recurrent state, for one robot or several.

    Actions are those of an evaluation without randomness: the mean, or the most likely one.

    Args:
        spec: Inputs and outputs of the network.
        num_robots: Robots that `act_batch` acts for.

    """

    def __init__(self, spec: PolicySpec, *, num_robots: int = 1) -> None:
        if num_robots < 1:
            raise ValueError(f"invalid num_robots: expected at least 1, got {num_robots}")
        self.spec, self.num_robots = spec, num_robots
        self._inputs = InputBuilder(spec, num_robots)
        self._memory = {part.name: np.zeros((num_robots, part.size), np.float32) for part in spec.memory}

    def reset(self, robots: Sequence[int] | None = None) -> None:
        """Start an episode of all robots, or of those with these numbers."""
        chosen = range(self.num_robots) if robots is None else robots
        for robot in chosen:
            if not 0 <= robot < self.num_robots:
                raise ValueError(f"unknown robot: expected 0 to {self.num_robots - 1}, got {robot}")
        self._inputs.reset(chosen)
        for memory in self._memory.values():
            memory[list(chosen)] = 0

    def act(self, observation: Observation) -> NDArray[Any]:
        """Return the action for an observation of the only robot, in the units of the environment.

        A view that is missing or None is masked. Images are RGB of [height, width, 3], one frame each: the policy
        stacks them. How old a frame may be is up to the caller: leave a frame out that is too old.

        Raises `ValueError` for unknown or wrongly sized entries, missing state vectors, and if every view is missing.
        """
        if self.num_robots != 1:
            raise ValueError(f"act is for one robot: expected act_batch for {self.num_robots} robots")
        action: NDArray[Any] = self.act_batch([observation])[0]
        return action

    def act_batch(self, observations: Sequence[Observation]) -> NDArray[Any]:
        """Return the actions [robots, ...] for one observation of each robot."""
        if len(observations) != self.num_robots:
            raise ValueError(f"expected an observation for each of {self.num_robots} robots, got {len(observations)}")
        inputs = self._inputs.append(observations)
        outputs = self.run_network({**inputs, **{MEMORY + name: value for name, value in self._memory.items()}})
        actions = outputs[ACTIONS]
        if isinstance(self.spec.actions, ActionBounds) and not np.isfinite(actions).all():
            raise RuntimeError(f"action is not finite: expected numbers within the bounds, got {actions}")
        for name, memory in self._memory.items():
            memory[:] = outputs[NEXT_MEMORY + name]
        return actions

    @abstractmethod
    def run_network(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the network's outputs [B, ...] by name for its inputs [B, ...]; see `PolicySpec.inputs`.

        It keeps no state.
        """
