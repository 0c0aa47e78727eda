"""Segment log: the steps of a replay buffer in immutable files.

A file is kept while a checkpoint refers to it. A step is final once another one follows it; the newest step of a replay
buffer is therefore part of the checkpoint.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from manyview.data.replay_buffer import ReplayBuffer
from manyview.data.segment_format import MAX_SEGMENT_STEPS, Segment, SegmentError, pack_segment
from manyview.utils.async_writer import AsyncWriter
from manyview.utils.atomic_io import make_directory, remove, write_atomic
from manyview.utils.files import TEMP_SUFFIX, read_bounded
from manyview.utils.json_io import is_count

MAX_SEGMENT_BYTES = 2**31
"""Largest segment file that is read."""
SEGMENT_NAME = re.compile(rf"[0-9]{{12}}-[0-9]{{12}}\.segment({re.escape(TEMP_SUFFIX)})?")


@dataclass(frozen=True)
class SegmentRef:
    """Reference to a segment file: steps `start` to `end` (exclusive) and its SHA-256."""

    start: int
    end: int
    sha256: str
    shard: int | None = None
    """Index of the replay shard, if there are several."""

    @property
    def name(self) -> str:
        """File name."""
        return f"{self.start:012d}-{self.end:012d}.segment"

    def to_plain(self) -> list[Any]:
        """Return the reference as a JSON list."""
        return [self.start, self.end, self.sha256, *([] if self.shard is None else [self.shard])]

    @classmethod
    def from_plain(cls, plain: Any) -> "SegmentRef":
        """Parse an untrusted JSON list. Raises ValueError if it is invalid."""
        match plain:
            case [int(start), int(end), str(sha256), *shard] if (
                0 <= start < end <= start + MAX_SEGMENT_STEPS and end < 10**12
            ):
                if not shard or (len(shard) == 1 and is_count(shard[0])):
                    return cls(start, end, sha256, *shard)
        raise ValueError(
            "invalid segment reference: expected [start, end, sha256] or [start, end, sha256, shard] with 1 to "
            f"{MAX_SEGMENT_STEPS} steps"
        )


@dataclass
class _WriteProgress:
    """Progress of the write jobs. Only they change it while any is pending."""

    written: list[SegmentRef] = field(default_factory=list)
    failed: bool = False


def read_segment(directory: Path, ref: SegmentRef) -> Segment:
    """Return a segment of a directory. Raises `SegmentError` unless it is the one that was written."""
    try:
        segment = Segment(read_bounded(directory / ref.name, max_bytes=MAX_SEGMENT_BYTES))
    except OSError as error:
        raise SegmentError(f"{ref.name}: {error.strerror or error}") from None
    except SegmentError as error:
        raise SegmentError(f"{ref.name}: {error}") from None
    if SegmentRef(segment.start, segment.end, segment.sha256) != ref:
        raise SegmentError(f"{ref.name} is not the segment that was written: its steps or its checksum differ")
    return segment


def write_segment(directory: Path, start: int, steps: NDArray[Any], arrays: Sequence[NDArray[Any]]) -> SegmentRef:
    """Write a segment atomically, with the arguments of `pack_segment`, and return the reference to it."""
    data, sha256 = pack_segment(start, steps, arrays)
    ref = SegmentRef(start, start + len(steps), sha256)
    make_directory(directory)
    write_atomic(directory / ref.name, [data])
    return ref


class ReplayLog(Protocol):
    """Persistent store of the steps that a run's checkpoints refer to."""

    def flush_full_segments(self) -> None:
        """Submit full segments for writing. Call it after each step."""

    def flush(self) -> None:
        """Submit all final steps for writing, before a checkpoint."""

    def list_segments(self, *, inserted: int) -> list[SegmentRef]:
        """Return the segments of the replay buffer as it was after `inserted` steps.

        For jobs of the writer, after the segments are written. Raises OSError if a segment could not be written.
        """

    def prune(self, keep: Iterable[SegmentRef]) -> None:
        """Remove files that are older than the newest in `keep` and not in it. For jobs of the writer."""

    def load(self, segments: Sequence[SegmentRef]) -> None:
        """Fill the replay buffer, whose state is restored already, from `segments`.

        Raises `SegmentError` if a segment is missing or invalid.
        """

    def truncate(self, *, keep: Iterable[SegmentRef]) -> None:
        """Remove files that are not in `keep`: steps after a checkpoint, to be collected again."""


class SegmentLog:
    """`ReplayLog` that writes segment files through an async writer and reads them back."""

    def __init__(self, directory: Path, replay: ReplayBuffer, writer: AsyncWriter) -> None:
        self._directory, self._replay, self._writer = directory, replay, writer
        self._submitted = 0
        """Steps before this index are submitted to the writer, or on disk."""
        self._retry_at = 0
        """After a failed write: step count below which only a checkpoint tries again."""
        self._progress = _WriteProgress()

    @property
    def _num_final(self) -> int:
        return max(0, self._replay.inserted - 1)

    def _find_oldest(self, inserted: int) -> int:
        """Return the oldest step in the ring after `inserted` insertions."""
        return max(0, inserted - self._replay.capacity)

    def flush_full_segments(self) -> None:
        if (
            self._num_final - self._submitted >= min(MAX_SEGMENT_STEPS, self._replay.capacity // 2)
            and self._num_final >= self._retry_at
        ):
            self._submit()

    def flush(self) -> None:
        if self._submitted < self._num_final:
            self._submit()

    def list_segments(self, *, inserted: int) -> list[SegmentRef]:
        if self._progress.failed:
            raise OSError("segments of the replay buffer could not be written")
        return [ref for ref in self._progress.written if ref.end > self._find_oldest(inserted)]

    def prune(self, keep: Iterable[SegmentRef]) -> None:
        names = {ref.name for ref in keep}
        newest = max(names, default="")
        for path in self._list_files():
            if path.name not in names and path.name < newest:
                remove(path)
        self._progress.written = [ref for ref in self._progress.written if ref.name in names or ref.name > newest]

    def load(self, segments: Sequence[SegmentRef]) -> None:
        expected = oldest = self._find_oldest(self._replay.inserted)
        for index, ref in enumerate(segments):
            if not (ref.start == expected or (index == 0 and ref.start < expected < ref.end)):
                raise SegmentError(
                    f"{ref.name} is out of order: expected it to start at step {expected}, got {ref.start}"
                )
            read_segment(self._directory, ref).unpack_into(self._replay.steps, self._replay.rings, oldest=oldest)
            expected = ref.end
        if expected != self._num_final:
            raise SegmentError(
                f"segments are incomplete: expected them to end at step {self._num_final}, got {expected}"
            )
        self._submitted, self._progress = self._num_final, _WriteProgress(list(segments))

    def truncate(self, *, keep: Iterable[SegmentRef]) -> None:
        names = {ref.name for ref in keep}
        for path in self._list_files():
            if path.name not in names:
                remove(path)

    def _list_files(self) -> list[Path]:
        return [path for path in self._directory.glob("*") if SEGMENT_NAME.fullmatch(path.name)]

    def _submit(self) -> None:
        if self._progress.failed:
            self._writer.wait()  # jobs queued after the failed one have returned without writing
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
        # Copies: the replay buffer may overwrite the steps before the job runs.
        steps = ring.steps.take(slots, mode="wrap")
        arrays = [array.take(slots, axis=0, mode="wrap") for array in ring.rings]
        return SegmentJob(self._directory, self._progress, start, steps, arrays)


class NullLog:
    """`ReplayLog` of on-policy runs, which stores nothing: rollouts are used once."""

    def flush_full_segments(self) -> None: ...

    def flush(self) -> None: ...

    def list_segments(self, *, inserted: int) -> list[SegmentRef]:  # noqa: ARG002
        return []

    def prune(self, keep: Iterable[SegmentRef]) -> None: ...

    def load(self, segments: Sequence[SegmentRef]) -> None: ...

    def truncate(self, *, keep: Iterable[SegmentRef]) -> None: ...


@dataclass(frozen=True)
class SegmentJob:
    """Write job of one segment; does nothing if an earlier job failed."""

    directory: Path
    progress: _WriteProgress
    start: int
    steps: Any
    arrays: list[Any]

    def __call__(self) -> None:
        if self.progress.failed:
            return
        try:
            ref = write_segment(self.directory, self.start, self.steps, self.arrays)
        except OSError:
            self.progress.failed = True
            raise
        self.progress.written.append(ref)
