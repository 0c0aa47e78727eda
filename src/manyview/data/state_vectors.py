"""State vectors of observations: their sizes, and their concatenations as agents take them.

A concatenation has all vectors in the order of declaration. A stack has whole concatenations one after another, oldest
first: [x_{t-1}, x_t].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyview.envs.views import Observation, StateVector


@dataclass(frozen=True, kw_only=True)
class VectorShapes:
    """State vectors of an observation and the number of stacked ones."""

    state_vectors: tuple[StateVector, ...] = ()
    state_stack: int = 1

    @property
    def vector_size(self) -> int:
        """Numbers of all stacked state vectors of an observation; 0 without any."""
        return self.state_stack * count_numbers(self.state_vectors)


def count_numbers(vectors: Sequence[StateVector]) -> int:
    """Return the numbers of all vectors of one step."""
    return sum(vector.size for vector in vectors)


def concatenate_vectors(
    observation: Observation, vectors: Sequence[StateVector], *, state_stack: int = 1
) -> NDArray[np.float32]:
    """Return the vectors of one observation, or of E environments, as [..., state_stack * D]."""
    stacks = [
        observation[vector.name].reshape(*observation[vector.name].shape[:-1], state_stack, vector.size)
        for vector in vectors
    ]
    joined: NDArray[np.float32] = np.concatenate(stacks, axis=-1)
    return joined.reshape(*joined.shape[:-2], -1)


def make_vector_fields(size: int) -> list[tuple[Any, ...]]:
    """Return the fields of a step's record for vectors of `size` numbers; none for 0."""
    if not size:
        return []
    # The age counts the steps since the episode's start, up to its largest value; it bounds the stack.
    return [("vectors", np.float32, (size,)), ("vector_age", np.uint8)]


def stack_vectors(steps: NDArray[Any], indices: NDArray[np.int64], *, state_stack: int) -> NDArray[np.float32]:
    """Return the stacked vectors [B, state_stack * D] of steps of a replay buffer with the records `steps`.

    No stack goes beyond the start of its episode: the first vector is repeated. A repeated observation has the vectors
    of the step before.
    """
    slots = indices % len(steps)
    slots = slots - steps.take(slots)["repeated"]
    ages = steps.take(slots, mode="wrap")["vector_age"]
    offsets = np.arange(state_stack - 1, -1, -1)
    rows = steps.take(slots[:, None] - np.minimum(offsets, ages[:, None]), mode="wrap")["vectors"]  # [B, stack, D]
    return np.ascontiguousarray(rows.reshape(len(indices), -1))
