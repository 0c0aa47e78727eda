"""Loader of batches from replay shards in other processes."""

import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from manyview.data import Batch
from manyview.scale.ray_runtime import Handle, get_results

PREFETCH_BATCHES = 2
"""Batches requested in advance while an update runs."""


class BatchLoader:
    """Assembles batches of parts from the shards, in proportion to their steps, so that neighbors span all actors."""

    def __init__(self, shards: Sequence[Handle], device: torch.device, *, shard_sizes: Sequence[int]) -> None:
        self._shards, self._device = shards, device
        self._inflight: deque[tuple[int, Any]] = deque()  # shard index and reference of a part
        self.shard_sizes = shard_sizes
        """Agent steps in each shard; the caller keeps the list up to date."""
        self._credits = [0.0] * len(shards)

    def sample(self) -> Batch:
        """Return the next batch, assembled of as many parts as there are shards."""
        count = len(self._shards)
        while len(self._inflight) < (1 + PREFETCH_BATCHES) * count:
            shard = self._select_shard()
            self._inflight.append((shard, self._shards[shard].sample.remote()))
        shards, references = zip(*(self._inflight.popleft() for _ in range(count)), strict=True)
        parts = [self._to_batch(arrays) for arrays in get_results(list(references), shards=shards)]
        if count == 1:
            return parts[0]
        return Batch._make(None if tensors[0] is None else torch.cat(tensors) for tensors in zip(*parts, strict=True))

    def _to_batch(self, arrays: Mapping[str, NDArray[Any]]) -> Batch:
        with warnings.catch_warnings():
            # Ray's shared memory is read-only, and no update writes to its batch.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return Batch(**{name: torch.from_numpy(array) for name, array in arrays.items()}).to(self._device)

    def _select_shard(self) -> int:
        total = sum(self.shard_sizes)
        self._credits = [credit + size / total for credit, size in zip(self._credits, self.shard_sizes, strict=True)]
        shard = max(range(len(self.shard_sizes)), key=lambda index: self._credits[index])
        self._credits[shard] -= 1
        return shard
