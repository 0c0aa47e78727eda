"""Segment logs of all shards as one log. Each shard writes and reads its own files; checkpoints list them all."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

from manyview.data import SegmentError
from manyview.data.segment_log import SegmentRef
from manyview.scale import ray_runtime
from manyview.scale.ray_runtime import Handle, get_results, translate_ray_errors

POLL_INTERVAL_S = 0.05
"""Interval at which marks are polled."""
WRITE_TIMEOUT_S = 600.0
"""Deadline for a shard to write its segments; at a mark only a few of them are unwritten."""
READ_SEGMENT_S = 10.0
"""Extension of the deadline of `load` per segment of a shard."""


class ShardedLog:
    """Replay log of a run with shards; `mark` starts the writing for a checkpoint and returns the shards' states."""

    def __init__(self, shards: Sequence[Handle]) -> None:
        self._shards = shards
        self._inserted_at_mark: dict[int, list[int]] = {}
        """Steps inserted into each shard at a mark, by their sum."""
        self._last_answered = -1
        """Marks with at most this many steps are not polled again."""

    @translate_ray_errors()
    def mark(self) -> list[dict[str, Any]]:
        """Return the states of the shards; their steps are on disk once `list_segments` has returned."""
        states: list[dict[str, Any]] = get_results([shard.mark.remote() for shard in self._shards])
        inserted = [state["replay"]["inserted"] for state in states]
        self._inserted_at_mark = {
            count: per_shard for count, per_shard in self._inserted_at_mark.items() if count > self._last_answered
        }
        self._inserted_at_mark[sum(inserted)] = inserted
        return states

    def flush_full_segments(self) -> None:
        """Do nothing: shards flush their own logs."""

    def flush(self) -> None:
        """Do nothing: `mark` flushes the shards."""

    @translate_ray_errors()
    def list_segments(self, *, inserted: int) -> list[SegmentRef]:
        """Return the segments of the mark with `inserted` steps once they are written.

        Shards are polled instead of waiting in them, so that they keep serving learners.

        Raises:
            OSError: A shard could not write its segments in time.

        """
        pending = list(zip(self._shards, self._inserted_at_mark[inserted], strict=True))
        deadline_s = monotonic() + WRITE_TIMEOUT_S
        while None in (results := get_results([shard.poll_mark.remote(count) for shard, count in pending])):
            if monotonic() > deadline_s:
                raise OSError(
                    f"replay shard {results.index(None)} is too slow: expected its segments on disk within "
                    f"{WRITE_TIMEOUT_S:g} s"
                )
            sleep(POLL_INTERVAL_S)
        self._last_answered = max(self._last_answered, inserted - 1)
        return [
            replace(SegmentRef.from_plain(plain), shard=index)
            for index, plains in enumerate(results)
            for plain in plains
        ]

    @translate_ray_errors()
    def prune(self, keep: Iterable[SegmentRef]) -> None:
        """Let shards delete segments that are not in `keep` and older than the newest of it."""
        get_results(
            [shard.prune.remote(part) for shard, part in zip(self._shards, self._split_by_shard(keep), strict=True)]
        )

    @translate_ray_errors()
    def load(self, segments: Sequence[SegmentRef]) -> None:
        """Fill the shards from segments; raise `SegmentError` if one is invalid."""
        parts = self._split_by_shard(segments)
        references = [shard.load.remote(part) for shard, part in zip(self._shards, parts, strict=True)]
        deadline_s = ray_runtime.RESULT_TIMEOUT_S + READ_SEGMENT_S * max(map(len, parts))
        for index, problem in enumerate(get_results(references, deadline_s=deadline_s)):
            if problem:
                raise SegmentError(f"shard {index}: {problem}")

    @translate_ray_errors()
    def truncate(self, *, keep: Iterable[SegmentRef]) -> None:
        """Delete all segments of the shards that are not in `keep`."""
        parts = zip(self._shards, self._split_by_shard(keep), strict=True)
        get_results([shard.truncate.remote(part) for shard, part in parts], deadline_s=WRITE_TIMEOUT_S)

    def _split_by_shard(self, segments: Iterable[SegmentRef]) -> list[list[Any]]:
        """Return the segments of each shard as plain values."""
        parts: list[list[Any]] = [[] for _ in self._shards]
        for segment in segments:
            if segment.shard is None or segment.shard >= len(parts):
                raise SegmentError(
                    f"{segment.name} has no shard: expected a shard number below {len(parts)}, got {segment.shard}"
                )
            parts[segment.shard].append(replace(segment, shard=None).to_plain())
        return parts
