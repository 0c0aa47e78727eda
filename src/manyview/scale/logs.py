"""The logs of all shards as one. Each shard writes and reads its own files; checkpoints name them all."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

from manyview.data import SegmentError
from manyview.data.log import Entry
from manyview.scale import engine
from manyview.scale.engine import Handle, answers_of, in_a_line

LOOK_EVERY_S = 0.05
WRITE_S = 600.0
"""Deadline of a shard's disk: at a mark at most a handful of segments are still to be written."""
READ_SEGMENT_S = 10.0
"""Added to the deadline of a call for every segment that a shard reads in it."""


class ShardLogs:
    """What is to be kept for a checkpoint, shards are told by `mark`, together with the question for their state."""

    def __init__(self, shards: Sequence[Handle]) -> None:
        self._shards = shards
        self._marks: dict[int, list[int]] = {}
        """Steps inserted into all shards at a mark, and into each."""
        self._answered = -1
        """Marks before so many steps are not asked for again."""

    @in_a_line()
    def mark(self) -> list[dict[str, Any]]:
        """The states of the shards, all of whose steps will be on the disk when `entries` has answered."""
        states: list[dict[str, Any]] = answers_of([shard.mark.remote() for shard in self._shards])
        inserted = [state["replay"]["inserted"] for state in states]
        self._marks = {count: each for count, each in self._marks.items() if count > self._answered}
        self._marks[sum(inserted)] = inserted
        return states

    def follow(self) -> None: ...

    def cut(self) -> None: ...

    @in_a_line()
    def entries(self, *, inserted: int) -> list[Entry]:
        """Asked for again and again, and not waited for in the shards: they go on with what learners want of them."""
        asked = list(zip(self._shards, self._marks[inserted], strict=True))
        deadline_s = monotonic() + WRITE_S
        while None in (found := answers_of([shard.marked.remote(count) for shard, count in asked])):
            if monotonic() > deadline_s:
                raise OSError(f"shard {found.index(None)} has not written its part within {WRITE_S:g} s")
            sleep(LOOK_EVERY_S)
        self._answered = max(self._answered, inserted - 1)
        return [replace(Entry.of(plain), shard=index) for index, plains in enumerate(found) for plain in plains]

    @in_a_line()
    def keep(self, wanted: Iterable[Entry]) -> None:
        answers_of([shard.keep.remote(part) for shard, part in zip(self._shards, self._parts(wanted), strict=True)])

    @in_a_line()
    def read(self, entries: Sequence[Entry]) -> None:
        parts = self._parts(entries)
        asked = [shard.read.remote(part) for shard, part in zip(self._shards, parts, strict=True)]
        deadline_s = engine.ANSWER_S + READ_SEGMENT_S * max(map(len, parts))
        for index, wrong in enumerate(answers_of(asked, deadline_s=deadline_s)):
            if wrong:
                raise SegmentError(f"shard {index}: {wrong}")

    @in_a_line()
    def forget(self, *, but: Iterable[Entry]) -> None:
        parts = zip(self._shards, self._parts(but), strict=True)
        answers_of([shard.forget.remote(part) for shard, part in parts], deadline_s=WRITE_S)

    def _parts(self, entries: Iterable[Entry]) -> list[list[Any]]:
        """Of each shard, as plain values."""
        parts: list[list[Any]] = [[] for _ in self._shards]
        for entry in entries:
            if entry.shard is None or entry.shard >= len(parts):
                raise SegmentError(f"{entry.name} is of a shard that there is not")
            parts[entry.shard].append(replace(entry, shard=None).plain())
        return parts
