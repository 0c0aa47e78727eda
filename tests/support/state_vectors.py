"""An environment with state vectors that number its observations, and agents that take such vectors."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from manyview.data import Batch
from manyview.envs import MultiViewEnv, StateVector, View
from manyview.envs.views import Observation
from tests.support.batches import batch

SIZES = {"joints": 3, "grip": 1}
VECTOR_SIZE = sum(SIZES.values())


class Numbered(MultiViewEnv):
    """Every observation has a number of its own, from which its vectors follow; sometimes no view is present."""

    def __init__(self, *, side: int = 5, longest: int = 7, absent: float = 0.0) -> None:
        vectors = [StateVector(name, size) for name, size in SIZES.items()]
        view = View("side", side, side, 1, fill=(0,))
        super().__init__([view], spaces.Box(-1, 1, (2,), np.float32), state_vectors=vectors)
        self._side, self._longest, self._absent, self.number = side, longest, absent, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._left = int(self.np_random.integers(1, self._longest + 1))
        return self._observe(absent=False), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._left -= 1
        ends, dies = self._left == 0, bool(self.np_random.integers(2))
        absent = bool(self.np_random.random() < self._absent)
        return self._observe(absent=absent), float(self.number), ends and dies, ends and not dies, {}

    def _observe(self, *, absent: bool) -> Observation:
        self.number += 1
        image = (np.arange(self._side**2).reshape(self._side, -1, 1) * 9 + self.number).astype(np.uint8)
        return self.observe({"side": None if absent else image}, vectors_of(self.number))


def vectors_of(number: int) -> dict[str, Any]:
    """The vectors of an observation, in which any two differ."""
    joints = np.array([number, -number, number**2], np.float32)
    return {"joints": joints, "grip": np.array([1 / number], np.float32)}


def joined(number: int) -> Any:
    return np.concatenate(list(vectors_of(number).values()))


def vector_batch(count: int = 16, *, size: int = VECTOR_SIZE, seed: int = 0) -> Batch:
    """A random batch with vectors far from mean 0 and standard deviation 1."""
    rng = torch.Generator().manual_seed(seed + 1)
    vectors = [40 + 5 * torch.randn(count, size, generator=rng) for _ in range(2)]
    return batch(count, seed=seed)._replace(vectors=vectors[0], next_vectors=vectors[1])
