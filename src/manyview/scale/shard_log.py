"""The logs of all shards as one. Each shard writes and reads its own files; checkpoints name them all."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

from manyview.data import SegmentError
from manyview.data.segment_log import SegmentRef
from manyview.scale import ray_runtime
from manyview.scale.ray_runtime import Handle, get_results, translate_ray_errors

POLL_INTERVAL_S = 0.05
WRITE_TIMEOUT_S = 600.0
"""Deadline of a shard's disk: at a mark at most a handful of segments are still to be written."""
READ_SEGMENT_S = 10.0
"""Added to the deadline of a call for every segment that a shard reads in it."""


class ShardedLog:
    """What is to be kept for a checkpoint, shards are told by `mark`, together with the question for their state."""

    def __init__(self, shards: Sequence[Handle]) -> None:
        self._shards = shards
        self._inserted_at_mark: dict[int, list[int]] = {}
        """Steps inserted into all shards at a mark, and into each."""
        self._last_answered = -1
        """Marks before so many steps are not asked for again."""

    @translate_ray_errors()
    def mark(self) -> list[dict[str, Any]]:
        """The states of the shards, all of whose steps will be on the disk when `entries` has answered."""
        states: list[dict[str, Any]] = get_results([shard.mark.remote() for shard in self._shards])
        inserted = [state["replay"]["inserted"] for state in states]
        self._inserted_at_mark = {
            count: per_shard for count, per_shard in self._inserted_at_mark.items() if count > self._last_answered
        }
        self._inserted_at_mark[sum(inserted)] = inserted
        return states

    def flush_full_segments(self) -> None: ...

    def flush(self) -> None: ...

    @translate_ray_errors()
    def list_segments(self, *, inserted: int) -> list[SegmentRef]:
        """Asked for again and again, and not waited for in the shards: they go on with what learners want of them."""
        pending = list(zip(self._shards, self._inserted_at_mark[inserted], strict=True))
        deadline_s = monotonic() + WRITE_TIMEOUT_S
        while None in (results := get_results([shard.poll_mark.remote(count) for shard, count in pending])):
            if monotonic() > deadline_s:
                raise OSError(f"shard {results.index(None)} has not written its part within {WRITE_TIMEOUT_S:g} s")
            sleep(POLL_INTERVAL_S)
        self._last_answered = max(self._last_answered, inserted - 1)
        return [
            replace(SegmentRef.from_plain(plain), shard=index)
            for index, plains in enumerate(results)
            for plain in plains
        ]

    @translate_ray_errors()
    def prune(self, keep: Iterable[SegmentRef]) -> None:
        get_results(
            [shard.prune.remote(part) for shard, part in zip(self._shards, self._split_by_shard(keep), strict=True)]
        )

    @translate_ray_errors()
    def load(self, segments: Sequence[SegmentRef]) -> None:
        parts = self._split_by_shard(segments)
        asked = [shard.load.remote(part) for shard, part in zip(self._shards, parts, strict=True)]
        deadline_s = ray_runtime.RESULT_TIMEOUT_S + READ_SEGMENT_S * max(map(len, parts))
        for index, problem in enumerate(get_results(asked, deadline_s=deadline_s)):
            if problem:
                raise SegmentError(f"shard {index}: {problem}")

    @translate_ray_errors()
    def truncate(self, *, keep: Iterable[SegmentRef]) -> None:
        parts = zip(self._shards, self._split_by_shard(keep), strict=True)
        get_results([shard.truncate.remote(part) for shard, part in parts], deadline_s=WRITE_TIMEOUT_S)

    def _split_by_shard(self, entries: Iterable[SegmentRef]) -> list[list[Any]]:
        """Of each shard, as plain values."""
        parts: list[list[Any]] = [[] for _ in self._shards]
        for entry in entries:
            if entry.shard is None or entry.shard >= len(parts):
                raise SegmentError(f"{entry.name} is of a shard that there is not")
            parts[entry.shard].append(replace(entry, shard=None).to_plain())
        return parts
