"""An environment with state vectors, and batches with such vectors."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from manyview.data import Batch
from manyview.envs import MultiViewEnv, StateVector, View
from manyview.envs.views import Observation
from tests.support.batches import make_batch

VECTOR_SIZES = {"joints": 3, "grip": 1}
VECTOR_SIZE = sum(VECTOR_SIZES.values())


class NumberedEnv(MultiViewEnv):
    """Environment whose state vectors encode the number of the observation.

    Numbers start at 1. The view is absent with probability `absent`.
    """

    def __init__(self, *, side: int = 5, max_steps: int = 7, absent: float = 0.0) -> None:
        vectors = [StateVector(name, size) for name, size in VECTOR_SIZES.items()]
        view = View("side", side, side, 1, fill=(0,))
        super().__init__([view], spaces.Box(-1, 1, (2,), np.float32), state_vectors=vectors)
        self._side, self._max_steps, self._absent, self.number = side, max_steps, absent, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._steps_left = int(self.np_random.integers(1, self._max_steps + 1))
        return self._observe(absent=False), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._steps_left -= 1
        done, terminal = self._steps_left == 0, bool(self.np_random.integers(2))
        absent = bool(self.np_random.random() < self._absent)
        return self._observe(absent=absent), float(self.number), done and terminal, done and not terminal, {}

    def _observe(self, *, absent: bool) -> Observation:
        self.number += 1
        image = (np.arange(self._side**2).reshape(self._side, -1, 1) * 9 + self.number).astype(np.uint8)
        return self.observe({"side": None if absent else image}, make_vectors(self.number))


def make_vectors(number: int) -> dict[str, Any]:
    """Return the state vectors of the observation with this number."""
    joints = np.array([number, -number, number**2], np.float32)
    return {"joints": joints, "grip": np.array([1 / number], np.float32)}


def make_flat_vector(number: int) -> Any:
    """Return the state vectors of an observation as a single array."""
    return np.concatenate(list(make_vectors(number).values()))


def make_vector_batch(batch_size: int = 16, *, size: int = VECTOR_SIZE, seed: int = 0) -> Batch:
    """Return a random batch with state vectors of mean 40 and standard deviation 5."""
    rng = torch.Generator().manual_seed(seed + 1)
    vectors = [40 + 5 * torch.randn(batch_size, size, generator=rng) for _ in range(2)]
    return make_batch(batch_size, seed=seed)._replace(vectors=vectors[0], next_vectors=vectors[1])
