"""State vectors of a wrapped environment: keys of its dict observation, or its whole observation."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from manyview.envs.contract import describe, make_contract_error
from manyview.envs.views import StateVector, Vector


class StateReader:
    """Reads named vectors from the observations of an environment, as float32.

    `names` are keys of a dict observation; an observation that is a single Box has one vector, of any name.
    """

    def __init__(self, env: gym.Env[Any, Any], names: Sequence[str], *, env_name: str) -> None:
        if isinstance(names, str):
            raise ValueError(
                f"{env_name}: invalid state: expected a sequence of names, got {names!r}. Use ({names!r},)"
            )
        self._env_name = env_name
        space: Any = env.observation_space
        if isinstance(space, spaces.Dict):
            offered: dict[str, Any] = {name: part for name, part in space.spaces.items() if _is_vector(part)}
        else:
            offered = {name: space for name in names[:1] if _is_vector(space)}
        unknown = [name for name in names if name not in offered]
        if unknown:
            offer = ", ".join(offered) if isinstance(space, spaces.Dict) else "one name for a Box of one dimension"
            raise ValueError(
                f"{env_name}: unknown state {', '.join(unknown)}: expected some of {offer or 'none'}, got observations "
                f"of {space}"
            )
        self._is_dict = isinstance(space, spaces.Dict)
        self.vectors = tuple(StateVector(name, offered[name].shape[0]) for name in names)

    def read(self, observation: Any) -> dict[str, Vector]:
        """Return the vectors of an observation by name."""
        return {
            part.name: self._convert(part, observation[part.name] if self._is_dict else observation)
            for part in self.vectors
        }

    def _convert(self, vector: StateVector, value: Any) -> Vector:
        array = np.asarray(value)
        if array.shape != (vector.size,) or array.dtype.kind not in "fiub":
            expected = f"numbers of shape {(vector.size,)}"
            raise make_contract_error(self._env_name, f"state vector {vector.name!r}", expected, describe(value))
        # A copy: an environment may write its next observation into the same memory.
        return array.astype(np.float32)


def _is_vector(space: Any) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0] > 0
