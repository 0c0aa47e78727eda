"""A part of a run's replay, fed by actors that may repeat themselves, flood or send nonsense."""

import hmac
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.data import AsyncWriter, SegmentError, SegmentLog
from manyview.data.chunks import ChunkSteps, append_chunk, unpack_chunk
from manyview.data.segment_log import SegmentRef
from manyview.scale.shared_fs import check_marker
from manyview.train import RunConfig, factory
from manyview.train.factory import Shapes
from manyview.utils.json_io import is_count
from manyview.utils.seeding import derive_seed

MAX_FAIR_SHARES = 2
"""An actor may have so many times what it would have if all had the same."""
MAX_ACTION_REPEAT = 100
"""Frames that a step can have taken: of a run that is counted in frames nobody else decides the end."""


class Chunk(NamedTuple):
    """A piece with its sender, and a number that counts up: sent twice, it is taken once."""

    actor: int
    incarnation: int
    """How often the actor had been replaced."""
    sequence_number: int
    frames: int
    """That its steps took."""
    payload: bytes
    secret: bytes = b""
    """`sign_incarnation` of its actor and life, which the learner gave to that process alone."""


def sign_incarnation(key: bytes, actor: int, incarnation: int) -> bytes:
    """Return the secret by which shards with this key know one life of one actor."""
    return hmac.digest(key, b"%d %d" % (actor, incarnation), "sha256")


class InsertResult(NamedTuple):
    """What a shard has after a parcel. Totals, and not what came with it: an answer that is lost loses nothing."""

    transitions: int
    """That it has taken in all."""
    frames: int
    """That those took."""
    size: int
    """Steps that are in its ring."""
    rejection: str = ""
    """Why the parcel was not taken."""


@dataclass
class SenderTracker:
    """Who sent what."""

    transitions: int = 0
    frames: int = 0
    last_received: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each actor: its life and the number of its last parcel."""
    chunks: deque[tuple[int, int]] = field(default_factory=deque)
    """What is in the ring, oldest first: an actor and how many steps of it."""
    steps_by_actor: Counter[int] = field(default_factory=Counter)
    """The same, by actor."""

    def is_duplicate(self, chunk: Chunk) -> bool:
        """Whether it was here before, or is of a life that is over."""
        return (chunk.incarnation, chunk.sequence_number) <= self.last_received.get(chunk.actor, (-1, -1))

    def is_over_quota(self, chunk: Chunk, steps: int, *, actors: int, steps_elsewhere: int) -> bool:
        total = self.steps_by_actor.total() + steps + steps_elsewhere
        # Two parcels are nobody's flood: at the begin whoever is first has everything.
        allowed = max(MAX_FAIR_SHARES * steps, MAX_FAIR_SHARES / max(actors, MAX_FAIR_SHARES) * total)
        return self.steps_by_actor[chunk.actor] + steps > allowed

    def record_chunk(self, chunk: Chunk, contents: ChunkSteps, *, capacity: int) -> None:
        self._add_steps(chunk.actor, len(contents.steps))
        while (excess := self.steps_by_actor.total() - capacity) > 0:  # the ring has overwritten what was oldest
            actor, steps = self.chunks.popleft()
            self.steps_by_actor[actor] -= min(steps, excess)
            if steps > excess:
                self.chunks.appendleft((actor, steps - excess))
        self.last_received[chunk.actor] = (chunk.incarnation, chunk.sequence_number)
        self.transitions += contents.num_transitions
        self.frames += chunk.frames

    def _add_steps(self, actor: int, steps: int) -> None:
        self.chunks.append((actor, steps))
        self.steps_by_actor[actor] += steps

    def get_state(self) -> dict[str, Any]:
        """Who has how much, and not where it lies: that would be a line for every chunk."""
        held = {str(actor): held for actor, held in self.steps_by_actor.items()}
        return {"transitions": self.transitions, "frames": self.frames, "steps_by_actor": held}

    def load_state(self, state: dict[str, Any]) -> None:
        """Parcels of before are not sent again: their actors are gone."""
        if not all(map(is_count, (state["transitions"], state["frames"], *state["steps_by_actor"].values()))):
            raise ValueError("what a shard has taken must be whole numbers")
        self.transitions, self.frames, self.last_received = state["transitions"], state["frames"], {}
        self.chunks, self.steps_by_actor = deque(), Counter()
        for actor, held in state["steps_by_actor"].items():
            self._add_steps(int(actor), held)


class ReplayShard:
    """One of `count` equal parts of the replay, with its own sampler and log."""

    def __init__(self, config: RunConfig, shapes: Shapes, *, index: int, count: int, key: bytes) -> None:
        part = replace(
            config.single_process,
            seed=derive_seed(config.seed, "shard", index),
            replay=replace(
                config.replay,
                capacity=config.replay.capacity // count,
                batch_size=config.replay.batch_size // (config.scale.learners * count),
            ),
            machine=replace(config.machine, device="cpu"),
        )
        self._index, self._count, self._num_senders, self._key = index, count, config.scale.actors, key
        self.set_senders(config.scale.actors)
        low, high = config.scale.reward_low, config.scale.reward_high
        self._reward_low, self._reward_high = -inf if low is None else low, inf if high is None else high
        self.replay = factory.build_replay_buffer(part, shapes)
        self.sampler = factory.build_sampler(part, self.replay)
        self.senders = SenderTracker()
        self._writer = AsyncWriter()
        self._log: SegmentLog | None = None
        self._marks: dict[int, list[SegmentRef] | OSError] = {}
        """What became of marks, by the steps that there were."""

    def set_senders(self, actors: int, *, steps_elsewhere: int = 0) -> None:
        """So many send to the shards, and so many steps are in the others: what their shares are measured by."""
        self._actors, self._steps_elsewhere = actors, steps_elsewhere

    def insert(self, chunk: Chunk) -> InsertResult:
        """Take a parcel, or say why not. A wrong one changes nothing."""
        rejection = self._find_header_error(chunk)
        if not rejection and not self.senders.is_duplicate(chunk):
            rejection = self._try_insert(chunk)
        return InsertResult(self.senders.transitions, self.senders.frames, len(self.replay), rejection)

    def _find_header_error(self, chunk: Chunk) -> str:
        """What is wrong with what it says of itself, or nothing."""
        if not (is_count(chunk.actor) and chunk.actor in range(self._index, self._num_senders, self._count)):
            return f"no actor {chunk.actor!r} sends here"
        if not (is_count(chunk.incarnation) and is_count(chunk.sequence_number)):
            return f"its life and number must be whole numbers, got {chunk.incarnation!r} and {chunk.sequence_number!r}"
        # Signed instead of announced: whoever can call a shard could announce itself too.
        secret = sign_incarnation(self._key, chunk.actor, chunk.incarnation)
        if not (isinstance(chunk.secret, bytes) and hmac.compare_digest(chunk.secret, secret)):
            return (
                f"its sender is not actor {chunk.actor} in life {chunk.incarnation}: it does not have that one's secret"
            )
        return ""

    def _try_insert(self, chunk: Chunk) -> str:
        """Nothing, or why not."""
        try:
            contents = unpack_chunk(chunk.payload, self.replay)
        except SegmentError as error:
            return str(error)
        rewards, actions, count = contents.rewards, contents.actions, contents.num_transitions
        if not (count and is_count(chunk.frames, min_value=count) and chunk.frames <= MAX_ACTION_REPEAT * count):
            return f"{count} transitions in {chunk.frames} frames"
        if np.abs(actions).max() > 1:
            return f"actions from {actions.min():g} to {actions.max():g}, they lie within [-1, 1]"
        if rewards.min() < self._reward_low or rewards.max() > self._reward_high:
            return (
                f"rewards from {rewards.min():g} to {rewards.max():g}, "
                f"declared were {self._reward_low:g} to {self._reward_high:g} (scale.reward_low, scale.reward_high)"
            )
        if self.senders.is_over_quota(
            chunk, len(contents.steps), actors=self._actors, steps_elsewhere=self._steps_elsewhere
        ):
            return f"more than {MAX_FAIR_SHARES} times its share of the replay"
        append_chunk(self.replay, contents)
        self.senders.record_chunk(chunk, contents, capacity=self.replay.capacity)
        if self._log is not None:
            self._log.flush_full_segments()
        return ""

    def sample(self) -> dict[str, NDArray[Any]]:
        """Its part of a batch; rows are numbered so that no two shards have the same."""
        batch = self.sampler.sample()._asdict()
        batch["indices"] = batch["indices"] * self._count + self._index
        return {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in batch.items()}

    def open_log(self, directory: Path, *, marker: Path) -> None:
        check_marker(marker)
        self._log = SegmentLog(directory / f"shard{self._index}", self.replay, self._writer)

    def mark(self) -> dict[str, Any]:
        """The state of this moment. Its steps are on the disk when `poll_mark` has an answer."""
        state, inserted = self.get_state(), self.replay.inserted
        log, writer, marks = self._log, self._writer, self._marks

        def record_mark() -> None:
            try:
                marks[inserted] = log.list_segments(inserted=inserted) if log is not None else []
            except OSError as error:
                marks[inserted] = [*writer.pop_failures(), error][0]  # the first says why

        if log is not None:
            log.flush()
        marks.pop(inserted, None)
        writer.submit(record_mark)
        return state

    def poll_mark(self, inserted: int) -> list[Any] | None:
        """The segments of the state that had so many steps; None until they are written, OSError if that failed.

        Nobody waits here: the shard is wanted for other things.
        """
        result = self._marks.get(inserted)
        for count in [count for count in list(self._marks) if count < inserted]:
            del self._marks[count]
        if isinstance(result, OSError):
            raise result
        return None if result is None else [entry.to_plain() for entry in result]

    def get_state(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"replay": self.replay, "sampler": self.sampler, "senders": self.senders}
        return {name: part.get_state() for name, part in parts.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.replay.load_state(state["replay"])
        self.sampler.load_state(state["sampler"])
        self.senders.load_state(state["senders"])

    def load(self, segments: Sequence[Any]) -> str:
        """Fill the replay, which has its state already; what is wrong with the segments, or nothing."""
        try:
            if self._log is not None:
                self._log.load([SegmentRef.from_plain(plain) for plain in segments])
        except SegmentError as error:
            return str(error)
        return ""

    def prune(self, segments: Sequence[Any]) -> None:
        if self._log is not None:
            log, wanted = self._log, [SegmentRef.from_plain(plain) for plain in segments]
            self._writer.submit(lambda: log.prune(wanted))

    def truncate(self, segments: Sequence[Any]) -> None:
        if self._log is not None:
            self._writer.wait()
            self._log.truncate(keep=[SegmentRef.from_plain(plain) for plain in segments])

    def close(self) -> None:
        self._writer.close()
        self.sampler.close()
