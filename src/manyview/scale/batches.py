"""Batches from shards in other processes."""

import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from manyview.data import Batch
from manyview.scale.engine import Handle, ray

IN_FLIGHT = 2
"""Batches on their way from each shard."""


class Batches:
    """Of all shards, as often of each as it has steps; some are always on their way."""

    def __init__(self, shards: Sequence[Handle], device: torch.device) -> None:
        self._shards, self._device = shards, device
        self._coming: deque[Any] = deque()
        self.held = [0] * len(shards)
        """Steps that are in each."""
        self._due = [0.0] * len(shards)

    def next(self) -> Batch:
        while len(self._coming) < IN_FLIGHT * len(self._shards):
            self._coming.append(self._shards[self._whose_turn()].sample.remote())
        arrays = ray.get(self._coming.popleft())
        with warnings.catch_warnings():
            # Ray's memory is not to be written to, and no update writes to its batch.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return Batch(**{name: torch.from_numpy(array) for name, array in arrays.items()}).to(self._device)

    def _whose_turn(self) -> int:
        total = sum(self.held)
        self._due = [due + held / total for due, held in zip(self._due, self.held, strict=True)]
        chosen = max(range(len(self.held)), key=lambda index: self._due[index])
        self._due[chosen] -= 1
        return chosen
