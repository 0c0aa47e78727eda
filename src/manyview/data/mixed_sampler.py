"""Sampler of batches that mix transitions of a run with demonstrations."""

from typing import Protocol

import torch

from manyview.data.batch import Batch
from manyview.data.sampler import Sampler

FIRST_DEMONSTRATION = -2
"""Index of the first demonstrated step in a batch; -1 marks an empty row of a feature bank."""


class BatchSampler(Protocol):
    """Source of replay batches with a state, such as a `Sampler`."""

    def sample(self) -> Batch:
        """Return the next batch."""

    def get_state(self) -> dict[str, int]:
        """Return the complete state."""

    def load_state(self, state: dict[str, int]) -> None:
        """Restore a state of `get_state`. Raises ValueError if it is invalid."""

    def close(self) -> None:
        """Stop the threads."""


class MixedSampler:
    """Batches of two samplers: first the rows of the run's own steps, then those of the demonstrations.

    Demonstrated steps have negative indices, unique in the run: -2 is the first step, -3 the one after it.

    Demonstrations do not change, so the batches of both are as many and the state is that of the run's own sampler.
    """

    def __init__(self, own: Sampler, demonstrations: Sampler, *, num_demonstrated: int) -> None:
        self._own, self._demonstrations, self._num_demonstrated = own, demonstrations, num_demonstrated

    def sample(self) -> Batch:
        """Return the next batch."""
        own, demonstrated = self._own.sample(), self._demonstrations.sample()
        demonstrated = demonstrated._replace(
            indices=FIRST_DEMONSTRATION - demonstrated.indices,
            next_indices=FIRST_DEMONSTRATION - demonstrated.next_indices,
        )
        pairs = zip(own, demonstrated, strict=True)
        return Batch._make(None if a is None or b is None else torch.cat([a, b]) for a, b in pairs)

    def get_state(self) -> dict[str, int]:
        """Return the complete state."""
        return self._own.get_state()

    def load_state(self, state: dict[str, int]) -> None:
        """Restore a state of `get_state`, after the replay buffer has been restored."""
        self._own.load_state(state)
        # Before the first batch, a sampler has not looked at its buffer yet.
        horizon = self._num_demonstrated if state["drawn"] else 0
        self._demonstrations.load_state({"drawn": state["drawn"], "horizon": horizon})

    def close(self) -> None:
        """Stop the threads; `sample` must not be called afterwards."""
        self._own.close()
        self._demonstrations.close()
