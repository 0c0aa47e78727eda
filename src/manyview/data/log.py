"""The log behind a replay: its steps in files that never change, for as long as a checkpoint names them.

A step is final once another one follows it, so the newest step of a replay belongs to its checkpoint instead.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from manyview.data.durable import make_folder, remove, write_whole
from manyview.data.replay import Replay
from manyview.data.scribe import Scribe
from manyview.data.segments import MOST_STEPS, Segment, SegmentError, pack
from manyview.utils.files import UNFINISHED, read_bounded
from manyview.utils.json_io import is_count

MOST_BYTES = 2**31
NAME = re.compile(rf"[0-9]{{12}}-[0-9]{{12}}\.segment({re.escape(UNFINISHED)})?")


@dataclass(frozen=True)
class Entry:
    """A segment as a checkpoint names it: steps from `begin` to before `end`, in a file with this checksum."""

    begin: int
    end: int
    sha256: str
    shard: int | None = None
    """Of a replay in several parts."""

    @property
    def name(self) -> str:
        return f"{self.begin:012d}-{self.end:012d}.segment"

    def plain(self) -> list[Any]:
        return [self.begin, self.end, self.sha256, *([] if self.shard is None else [self.shard])]

    @classmethod
    def of(cls, plain: Any) -> "Entry":
        """An entry from outside; what is wrong with it raises ValueError."""
        match plain:
            case [int(begin), int(end), str(sha256), *shard] if 0 <= begin < end <= begin + MOST_STEPS and end < 10**12:
                if not shard or (len(shard) == 1 and is_count(shard[0])):
                    return cls(begin, end, sha256, *shard)
        raise ValueError("the name of a segment makes no sense")


@dataclass
class _Progress:
    """What the scribe has done. Nobody else changes it while jobs are waiting."""

    written: list[Entry] = field(default_factory=list)
    failed: bool = False


class Log(Protocol):
    """Where a run keeps the steps that its checkpoints refer to."""

    def follow(self) -> None:
        """After each step: hand over what makes a whole segment."""

    def cut(self) -> None:
        """Hand over everything that is final, for a checkpoint of this moment."""

    def entries(self, *, inserted: int) -> list[Entry]:
        """For jobs of the scribe: what is written of the replay as it was at so many steps, which is all of it."""

    def keep(self, wanted: Iterable[Entry]) -> None:
        """For jobs of the scribe: remove every file that is not wanted and older than the last one that is."""

    def read(self, entries: Sequence[Entry]) -> None:
        """Fill the replay, which has its state already, from these segments; `SegmentError` says what is wrong."""

    def forget(self, *, but: Iterable[Entry]) -> None:
        """Remove every file that is not among these: steps from after a checkpoint, which will come again."""


class SegmentLog:
    """Writes the steps of a replay through a scribe, and reads them back."""

    def __init__(self, folder: Path, replay: Replay, scribe: Scribe) -> None:
        self._folder, self._replay, self._scribe = folder, replay, scribe
        self._cut = 0
        """Steps before this one are with the scribe, or on the disk."""
        self._patience = 0
        """After a failure: the number of steps before which there is no other attempt but at a checkpoint."""
        self._progress = _Progress()

    @property
    def _final(self) -> int:
        return max(0, self._replay.inserted - 1)

    def _oldest(self, inserted: int) -> int:
        """Of the steps that a replay has when so many were inserted."""
        return max(0, inserted - self._replay.capacity)

    def follow(self) -> None:
        """After each step: hand over what makes a whole segment."""
        if self._final - self._cut >= min(MOST_STEPS, self._replay.capacity // 2) and self._final >= self._patience:
            self._hand_over()

    def cut(self) -> None:
        """Hand over everything that is final, for a checkpoint of this moment."""
        if self._cut < self._final:
            self._hand_over()

    def entries(self, *, inserted: int) -> list[Entry]:
        """For jobs of the scribe: what is written of the replay as it was at so many steps, which is all of it."""
        if self._progress.failed:
            raise OSError("steps of the replay could not be written")
        return [entry for entry in self._progress.written if entry.end > self._oldest(inserted)]

    def keep(self, wanted: Iterable[Entry]) -> None:
        """For jobs of the scribe: remove every file that is not wanted and older than the last one that is."""
        names = {entry.name for entry in wanted}
        newest = max(names, default="")
        for path in self._files():
            if path.name not in names and path.name < newest:
                remove(path)
        self._progress.written = [
            entry for entry in self._progress.written if entry.name in names or entry.name > newest
        ]

    def read(self, entries: Sequence[Entry]) -> None:
        """Fill the replay, which has its state already, from these segments; `SegmentError` says what is wrong."""
        expected = oldest = self._oldest(self._replay.inserted)
        for place, entry in enumerate(entries):
            if not (entry.begin == expected or (place == 0 and entry.begin < expected < entry.end)):
                raise SegmentError(f"{entry.name} does not follow the one before it")
            self._read(entry).unpack(self._replay.steps, self._replay.frames, oldest=oldest)
            expected = entry.end
        if expected != self._final:
            raise SegmentError(f"the segments end at step {expected}, the replay at {self._final}")
        self._cut, self._progress = self._final, _Progress(list(entries))

    def forget(self, *, but: Iterable[Entry]) -> None:
        """Remove every file that is not among these: steps from after a checkpoint, which will come again."""
        names = {entry.name for entry in but}
        for path in self._files():
            if path.name not in names:
                remove(path)

    def _files(self) -> list[Path]:
        return [path for path in self._folder.glob("*") if NAME.fullmatch(path.name)]

    def _read(self, entry: Entry) -> Segment:
        try:
            packed = read_bounded(self._folder / entry.name, max_bytes=MOST_BYTES)
        except OSError as error:
            raise SegmentError(f"{entry.name}: {error.strerror or error}") from None
        try:
            segment = Segment(packed)
        except SegmentError as error:
            raise SegmentError(f"{entry.name}: {error}") from None
        if Entry(segment.begin, segment.end, segment.sha256) != entry:
            raise SegmentError(f"{entry.name} is another segment than the one that was written")
        return segment

    def _hand_over(self) -> None:
        if self._progress.failed:
            self._scribe.wait()  # the jobs behind the one that failed have seen it, and done nothing
            self._cut = self._progress.written[-1].end if self._progress.written else 0
            self._patience = self._final + MOST_STEPS
            self._progress.failed = False
        self._cut = max(self._cut, self._oldest(self._replay.inserted))
        while self._cut < self._final:
            begin, end = self._cut, min(self._final, self._cut + MOST_STEPS)
            self._scribe.ask(self._job(begin, end))
            self._cut = end

    def _job(self, begin: int, end: int) -> "Job":
        slots = range(begin, end)
        ring = self._replay
        # Copies: the replay goes on, and may overwrite them before their turn comes.
        steps = ring.steps.take(slots, mode="wrap")
        frames = [view.take(slots, axis=0, mode="wrap") for view in ring.frames]
        return Job(self._folder, self._progress, begin, steps, frames)


class NoLog:
    """In the place of a log where nothing is kept for longer than a checkpoint: rollouts are used once."""

    def follow(self) -> None: ...

    def cut(self) -> None: ...

    def entries(self, *, inserted: int) -> list[Entry]:  # noqa: ARG002
        return []

    def keep(self, wanted: Iterable[Entry]) -> None: ...

    def read(self, entries: Sequence[Entry]) -> None: ...

    def forget(self, *, but: Iterable[Entry]) -> None: ...


@dataclass(frozen=True)
class Job:
    """For the scribe: write one segment, unless one before it failed."""

    folder: Path
    progress: _Progress
    begin: int
    steps: Any
    frames: list[Any]

    def __call__(self) -> None:
        if self.progress.failed:
            return
        packed, sha256 = pack(self.begin, self.steps, self.frames)
        entry = Entry(self.begin, self.begin + len(self.steps), sha256)
        try:
            make_folder(self.folder)
            write_whole(self.folder / entry.name, [packed])
        except OSError:
            self.progress.failed = True
            raise
        self.progress.written.append(entry)
