"""The log behind a replay: its steps in files that never change, for as long as a checkpoint names them.

A step is final once another one follows it, so the newest step of a replay belongs to its checkpoint instead.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from manyview.data.replay_buffer import ReplayBuffer
from manyview.data.segments import MAX_SEGMENT_STEPS, Segment, SegmentError, pack_segment
from manyview.utils.async_writer import AsyncWriter
from manyview.utils.atomic_io import make_directory, remove, write_atomic
from manyview.utils.files import TEMP_SUFFIX, read_bounded
from manyview.utils.json_io import is_count

MAX_SEGMENT_BYTES = 2**31
SEGMENT_NAME = re.compile(rf"[0-9]{{12}}-[0-9]{{12}}\.segment({re.escape(TEMP_SUFFIX)})?")


@dataclass(frozen=True)
class SegmentRef:
    """A segment as a checkpoint names it: steps from `start` to before `end`, in a file with this checksum."""

    start: int
    end: int
    sha256: str
    shard: int | None = None
    """Of a replay in several parts."""

    @property
    def name(self) -> str:
        return f"{self.start:012d}-{self.end:012d}.segment"

    def to_plain(self) -> list[Any]:
        return [self.start, self.end, self.sha256, *([] if self.shard is None else [self.shard])]

    @classmethod
    def from_plain(cls, plain: Any) -> "SegmentRef":
        """An entry from outside; what is wrong with it raises ValueError."""
        match plain:
            case [int(start), int(end), str(sha256), *shard] if (
                0 <= start < end <= start + MAX_SEGMENT_STEPS and end < 10**12
            ):
                if not shard or (len(shard) == 1 and is_count(shard[0])):
                    return cls(start, end, sha256, *shard)
        raise ValueError("the name of a segment makes no sense")


@dataclass
class _WriteProgress:
    """What the scribe has done. Nobody else changes it while jobs are waiting."""

    written: list[SegmentRef] = field(default_factory=list)
    failed: bool = False


class ReplayLog(Protocol):
    """Where a run keeps the steps that its checkpoints refer to."""

    def flush_full_segments(self) -> None:
        """After each step: hand over what makes a whole segment."""

    def flush(self) -> None:
        """Hand over everything that is final, for a checkpoint of this moment."""

    def list_segments(self, *, inserted: int) -> list[SegmentRef]:
        """For jobs of the scribe: what is written of the replay as it was at so many steps, which is all of it."""

    def prune(self, keep: Iterable[SegmentRef]) -> None:
        """For jobs of the scribe: remove every file that is not wanted and older than the last one that is."""

    def load(self, segments: Sequence[SegmentRef]) -> None:
        """Fill the replay, which has its state already, from these segments; `SegmentError` says what is wrong."""

    def truncate(self, *, keep: Iterable[SegmentRef]) -> None:
        """Remove every file that is not among these: steps from after a checkpoint, which will come again."""


class SegmentLog:
    """Writes the steps of a replay through a scribe, and reads them back."""

    def __init__(self, directory: Path, replay: ReplayBuffer, writer: AsyncWriter) -> None:
        self._directory, self._replay, self._writer = directory, replay, writer
        self._submitted = 0
        """Steps before this one are with the scribe, or on the disk."""
        self._retry_at = 0
        """After a failure: the number of steps before which there is no other attempt but at a checkpoint."""
        self._progress = _WriteProgress()

    @property
    def _num_final(self) -> int:
        return max(0, self._replay.inserted - 1)

    def _find_oldest(self, inserted: int) -> int:
        """Of the steps that a replay has when so many were inserted."""
        return max(0, inserted - self._replay.capacity)

    def flush_full_segments(self) -> None:
        """After each step: hand over what makes a whole segment."""
        if (
            self._num_final - self._submitted >= min(MAX_SEGMENT_STEPS, self._replay.capacity // 2)
            and self._num_final >= self._retry_at
        ):
            self._submit()

    def flush(self) -> None:
        """Hand over everything that is final, for a checkpoint of this moment."""
        if self._submitted < self._num_final:
            self._submit()

    def list_segments(self, *, inserted: int) -> list[SegmentRef]:
        """For jobs of the scribe: what is written of the replay as it was at so many steps, which is all of it."""
        if self._progress.failed:
            raise OSError("steps of the replay could not be written")
        return [ref for ref in self._progress.written if ref.end > self._find_oldest(inserted)]

    def prune(self, keep: Iterable[SegmentRef]) -> None:
        """For jobs of the scribe: remove every file that is not wanted and older than the last one that is."""
        names = {ref.name for ref in keep}
        newest = max(names, default="")
        for path in self._list_files():
            if path.name not in names and path.name < newest:
                remove(path)
        self._progress.written = [ref for ref in self._progress.written if ref.name in names or ref.name > newest]

    def load(self, segments: Sequence[SegmentRef]) -> None:
        """Fill the replay, which has its state already, from these segments; `SegmentError` says what is wrong."""
        expected = oldest = self._find_oldest(self._replay.inserted)
        for index, ref in enumerate(segments):
            if not (ref.start == expected or (index == 0 and ref.start < expected < ref.end)):
                raise SegmentError(f"{ref.name} does not follow the one before it")
            self._read_segment(ref).unpack_into(self._replay.steps, self._replay.frames, oldest=oldest)
            expected = ref.end
        if expected != self._num_final:
            raise SegmentError(f"the segments end at step {expected}, the replay at {self._num_final}")
        self._submitted, self._progress = self._num_final, _WriteProgress(list(segments))

    def truncate(self, *, keep: Iterable[SegmentRef]) -> None:
        """Remove every file that is not among these: steps from after a checkpoint, which will come again."""
        names = {ref.name for ref in keep}
        for path in self._list_files():
            if path.name not in names:
                remove(path)

    def _list_files(self) -> list[Path]:
        return [path for path in self._directory.glob("*") if SEGMENT_NAME.fullmatch(path.name)]

    def _read_segment(self, ref: SegmentRef) -> Segment:
        try:
            data = read_bounded(self._directory / ref.name, max_bytes=MAX_SEGMENT_BYTES)
        except OSError as error:
            raise SegmentError(f"{ref.name}: {error.strerror or error}") from None
        try:
            segment = Segment(data)
        except SegmentError as error:
            raise SegmentError(f"{ref.name}: {error}") from None
        if SegmentRef(segment.start, segment.end, segment.sha256) != ref:
            raise SegmentError(f"{ref.name} is another segment than the one that was written")
        return segment

    def _submit(self) -> None:
        if self._progress.failed:
            self._writer.wait()  # the jobs behind the one that failed have seen it, and done nothing
            self._submitted = self._progress.written[-1].end if self._progress.written else 0
            self._retry_at = self._num_final + MAX_SEGMENT_STEPS
            self._progress.failed = False
        self._submitted = max(self._submitted, self._find_oldest(self._replay.inserted))
        while self._submitted < self._num_final:
            start, end = self._submitted, min(self._num_final, self._submitted + MAX_SEGMENT_STEPS)
            self._writer.submit(self._make_job(start, end))
            self._submitted = end

    def _make_job(self, start: int, end: int) -> "SegmentJob":
        slots = range(start, end)
        ring = self._replay
        # Copies: the replay goes on, and may overwrite them before their turn comes.
        steps = ring.steps.take(slots, mode="wrap")
        frames = [view.take(slots, axis=0, mode="wrap") for view in ring.frames]
        return SegmentJob(self._directory, self._progress, start, steps, frames)


class NullLog:
    """In the place of a log where nothing is kept for longer than a checkpoint: rollouts are used once."""

    def flush_full_segments(self) -> None: ...

    def flush(self) -> None: ...

    def list_segments(self, *, inserted: int) -> list[SegmentRef]:  # noqa: ARG002
        return []

    def prune(self, keep: Iterable[SegmentRef]) -> None: ...

    def load(self, segments: Sequence[SegmentRef]) -> None: ...

    def truncate(self, *, keep: Iterable[SegmentRef]) -> None: ...


@dataclass(frozen=True)
class SegmentJob:
    """For the scribe: write one segment, unless one before it failed."""

    directory: Path
    progress: _WriteProgress
    start: int
    steps: Any
    frames: list[Any]

    def __call__(self) -> None:
        if self.progress.failed:
            return
        data, sha256 = pack_segment(self.start, self.steps, self.frames)
        ref = SegmentRef(self.start, self.start + len(self.steps), sha256)
        try:
            make_directory(self.directory)
            write_atomic(self.directory / ref.name, [data])
        except OSError:
            self.progress.failed = True
            raise
        self.progress.written.append(ref)
