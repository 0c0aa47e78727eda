"""Batches from shards in other processes."""

import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from manyview.data import Batch
from manyview.scale.engine import Handle, answers_of

AHEAD = 2
"""Batches that are on their way while one is learned from."""


class Batches:
    """Each is put together of parts, as many from a shard as it has steps: neighbours are steps of all actors."""

    def __init__(self, shards: Sequence[Handle], device: torch.device, *, held: Sequence[int]) -> None:
        self._shards, self._device = shards, device
        self._coming: deque[tuple[int, Any]] = deque()  # shard and part of a batch, as many as there are shards
        self.held = held
        """Steps that are in each; whoever gave it keeps it up to date."""
        self._due = [0.0] * len(shards)

    def next(self) -> Batch:
        count = len(self._shards)
        while len(self._coming) < (1 + AHEAD) * count:
            shard = self._whose_turn()
            self._coming.append((shard, self._shards[shard].sample.remote()))
        shards, asked = zip(*(self._coming.popleft() for _ in range(count)), strict=True)
        parts = [self._batch(arrays) for arrays in answers_of(list(asked), shards=shards)]
        return parts[0] if count == 1 else Batch(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def _batch(self, arrays: Mapping[str, NDArray[Any]]) -> Batch:
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
