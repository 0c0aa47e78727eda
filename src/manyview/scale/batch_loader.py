"""Batches from shards in other processes."""

import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from manyview.data import Batch
from manyview.scale.ray_runtime import Handle, get_results

PREFETCH_BATCHES = 2
"""Batches that are on their way while one is learned from."""


class BatchLoader:
    """Each is put together of parts, as many from a shard as it has steps: neighbours are steps of all actors."""

    def __init__(self, shards: Sequence[Handle], device: torch.device, *, shard_sizes: Sequence[int]) -> None:
        self._shards, self._device = shards, device
        self._inflight: deque[tuple[int, Any]] = deque()  # shard and part of a batch, as many as there are shards
        self.shard_sizes = shard_sizes
        """Steps that are in each; whoever gave it keeps it up to date."""
        self._credits = [0.0] * len(shards)

    def sample(self) -> Batch:
        count = len(self._shards)
        while len(self._inflight) < (1 + PREFETCH_BATCHES) * count:
            shard = self._select_shard()
            self._inflight.append((shard, self._shards[shard].sample.remote()))
        shards, asked = zip(*(self._inflight.popleft() for _ in range(count)), strict=True)
        parts = [self._to_batch(arrays) for arrays in get_results(list(asked), shards=shards)]
        return parts[0] if count == 1 else Batch(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def _to_batch(self, arrays: Mapping[str, NDArray[Any]]) -> Batch:
        with warnings.catch_warnings():
            # Ray's memory is not to be written to, and no update writes to its batch.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return Batch(**{name: torch.from_numpy(array) for name, array in arrays.items()}).to(self._device)

    def _select_shard(self) -> int:
        total = sum(self.shard_sizes)
        self._credits = [due + held / total for due, held in zip(self._credits, self.shard_sizes, strict=True)]
        chosen = max(range(len(self.shard_sizes)), key=lambda index: self._credits[index])
        self._credits[chosen] -= 1
        return chosen
