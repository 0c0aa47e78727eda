"""Shard of a run's replay buffer, which validates chunks: actors may repeat, flood or send invalid data."""

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
from manyview.training import RunConfig, factory
from manyview.training.factory import Shapes
from manyview.utils.json_io import is_count
from manyview.utils.seeding import derive_seed

MAX_FAIR_SHARES = 2
"""Multiple of an equal share of the replay buffer that one actor may fill."""
MAX_ACTION_REPEAT = 100
"""Limit of simulator frames per agent step, so that a sender cannot end a run, whose length is in frames."""


class Chunk(NamedTuple):
    """Packed transitions with their sender and a sequence number, by which a repeated chunk is inserted once."""

    actor: int
    incarnation: int
    """Number of times that the actor had been replaced."""
    sequence_number: int
    """Number of the chunk within its incarnation."""
    frames: int
    """Simulator frames of its steps."""
    payload: bytes
    """Transitions packed by `data.chunks.pack_chunk`."""
    secret: bytes = b""
    """`sign_incarnation` of actor and incarnation, which the learner gave only to that process."""


class InsertResult(NamedTuple):
    """Totals of a shard after a chunk, so that a lost answer loses no information."""

    transitions: int
    """Transitions inserted in total."""
    frames: int
    """Simulator frames of these transitions."""
    size: int
    """Agent steps stored in the ring."""
    rejection: str = ""
    """Reason for which the chunk was rejected, or empty."""


@dataclass
class SenderTracker:
    """Bookkeeping of the chunks and steps of each actor."""

    transitions: int = 0
    """Transitions inserted in total."""
    frames: int = 0
    """Simulator frames of these transitions."""
    last_received: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Incarnation and sequence number of the last chunk by actor."""
    chunks: deque[tuple[int, int]] = field(default_factory=deque)
    """Actor and number of steps of each chunk in the ring, oldest first."""
    steps_by_actor: Counter[int] = field(default_factory=Counter)
    """Steps in the ring by actor."""

    def is_duplicate(self, chunk: Chunk) -> bool:
        """Return whether the chunk was received before, or comes from a past incarnation."""
        return (chunk.incarnation, chunk.sequence_number) <= self.last_received.get(chunk.actor, (-1, -1))

    def is_over_quota(self, chunk: Chunk, steps: int, *, actors: int, steps_elsewhere: int) -> bool:
        """Return whether `steps` more steps give the actor more than `MAX_FAIR_SHARES` of all shards' steps."""
        total = self.steps_by_actor.total() + steps + steps_elsewhere
        # Two chunks are always allowed: the first sender starts with all steps.
        allowed = max(MAX_FAIR_SHARES * steps, MAX_FAIR_SHARES / max(actors, MAX_FAIR_SHARES) * total)
        return self.steps_by_actor[chunk.actor] + steps > allowed

    def record_chunk(self, chunk: Chunk, contents: ChunkSteps, *, capacity: int) -> None:
        """Count an inserted chunk, and forget the steps that it overwrote in the ring."""
        self._add_steps(chunk.actor, len(contents.steps))
        while (excess := self.steps_by_actor.total() - capacity) > 0:  # the ring has overwritten the oldest
            actor, steps = self.chunks.popleft()
            self.steps_by_actor[actor] -= min(steps, excess)
            if steps > excess:
                self.chunks.appendleft((actor, steps - excess))
        self.last_received[chunk.actor] = (chunk.incarnation, chunk.sequence_number)
        self.transitions += contents.num_transitions
        self.frames += chunk.frames

    def get_state(self) -> dict[str, Any]:
        """Return totals and steps by actor, without the order of chunks, which would take a line for each."""
        steps_by_actor = {str(actor): steps for actor, steps in self.steps_by_actor.items()}
        return {"transitions": self.transitions, "frames": self.frames, "steps_by_actor": steps_by_actor}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the totals; sequence numbers restart, because the actors of the checkpoint are gone."""
        counts = (state["transitions"], state["frames"], *state["steps_by_actor"].values())
        if not all(map(is_count, counts)):
            raise ValueError(f"invalid shard state: expected transitions, frames and steps >= 0, got {counts!r}")
        self.transitions, self.frames, self.last_received = state["transitions"], state["frames"], {}
        self.chunks, self.steps_by_actor = deque(), Counter()
        for actor, steps in state["steps_by_actor"].items():
            self._add_steps(int(actor), steps)

    def _add_steps(self, actor: int, steps: int) -> None:
        self.chunks.append((actor, steps))
        self.steps_by_actor[actor] += steps


def sign_incarnation(key: bytes, actor: int, incarnation: int) -> bytes:
    """Return the secret that proves actor and incarnation to shards with this key."""
    return hmac.digest(key, b"%d %d" % (actor, incarnation), "sha256")


class ReplayShard:
    """One of `count` equal shards of the replay buffer, with its own sampler and segment log."""

    def __init__(self, config: RunConfig, shapes: Shapes, *, index: int, count: int, key: bytes) -> None:
        part = replace(
            config.single_process,
            seed=derive_seed(config.seed, "shard", index),
            replay=replace(
                config.replay,
                capacity=config.replay.capacity // count,
                batch_size=config.replay.batch_size // (config.scale.learners * count),
            ),
            compute=replace(config.compute, device="cpu"),
        )
        self._index, self._count, self._num_senders, self._key = index, count, config.scale.actors, key
        self.set_senders(config.scale.actors)
        low, high = config.scale.reward_low, config.scale.reward_high
        self._reward_low, self._reward_high = -inf if low is None else low, inf if high is None else high
        bonus = factory.build_agent_outline(part, shapes).bonus  # a shard has no agent
        self.replay = factory.build_replay_buffer(part, shapes, bonus)
        self.sampler = factory.build_sampler(part, self.replay, bonus)
        self.senders = SenderTracker()
        self._writer = AsyncWriter()
        self._log: SegmentLog | None = None
        self._marks: dict[int, list[SegmentRef] | OSError] = {}
        """Segments or error of each mark, by the steps inserted at the mark."""

    def set_senders(self, actors: int, *, steps_elsewhere: int = 0) -> None:
        """Set the number of sending actors and the steps in other shards, from which quotas are computed."""
        self._actors, self._steps_elsewhere = actors, steps_elsewhere

    def insert(self, chunk: Chunk) -> InsertResult:
        """Insert a chunk, or return the reason for its rejection; a rejected chunk changes nothing."""
        rejection = self._find_header_error(chunk)
        if not rejection and not self.senders.is_duplicate(chunk):
            rejection = self._try_insert(chunk)
        return InsertResult(self.senders.transitions, self.senders.frames, len(self.replay), rejection)

    def _find_header_error(self, chunk: Chunk) -> str:
        """Return what is wrong with sender and numbers of the chunk, or an empty string."""
        if not (is_count(chunk.actor) and chunk.actor in range(self._index, self._num_senders, self._count)):
            return f"unknown sender: actor {chunk.actor!r} does not send to shard {self._index}"
        if not (is_count(chunk.incarnation) and is_count(chunk.sequence_number)):
            return (
                "invalid incarnation or sequence number: expected integers >= 0, got "
                f"{chunk.incarnation!r} and {chunk.sequence_number!r}"
            )
        # Signed instead of registered: any process that can call a shard could register itself too.
        secret = sign_incarnation(self._key, chunk.actor, chunk.incarnation)
        if not (isinstance(chunk.secret, bytes) and hmac.compare_digest(chunk.secret, secret)):
            return f"wrong secret: the sender is not actor {chunk.actor} in incarnation {chunk.incarnation}"
        return ""

    def _try_insert(self, chunk: Chunk) -> str:
        """Insert the chunk if its contents are valid; return the reason for a rejection, or an empty string."""
        try:
            contents = unpack_chunk(chunk.payload, self.replay)
        except SegmentError as error:
            return str(error)
        rewards, actions, count = contents.rewards, contents.actions, contents.num_transitions
        if not (count and is_count(chunk.frames, min_value=count) and chunk.frames <= MAX_ACTION_REPEAT * count):
            return (
                f"invalid number of frames: expected 1 to {MAX_ACTION_REPEAT} per transition, got {chunk.frames} for "
                f"{count} transitions"
            )
        if np.abs(actions).max() > 1:
            return f"invalid actions: expected values from -1 to 1, got {actions.min():g} to {actions.max():g}"
        if rewards.min() < self._reward_low or rewards.max() > self._reward_high:
            return (
                f"invalid rewards: expected {self._reward_low:g} to {self._reward_high:g} (scale.reward_low, "
                f"scale.reward_high), got {rewards.min():g} to {rewards.max():g}"
            )
        if self.senders.is_over_quota(
            chunk, len(contents.steps), actors=self._actors, steps_elsewhere=self._steps_elsewhere
        ):
            return f"quota exceeded: expected at most {MAX_FAIR_SHARES} times an equal share of the replay buffer"
        append_chunk(self.replay, contents)
        self.senders.record_chunk(chunk, contents, capacity=self.replay.capacity)
        if self._log is not None:
            self._log.flush_full_segments()
        return ""

    def sample(self) -> dict[str, NDArray[Any]]:
        """Return this shard's part of a batch; indices are unique across shards."""
        batch = self.sampler.sample()._asdict()
        for name in ("indices", "next_indices"):
            batch[name] = batch[name] * self._count + self._index
        return {name: np.ascontiguousarray(part.numpy()) for name, part in batch.items() if part is not None}

    def open_log(self, directory: Path, *, marker: Path) -> None:
        """Open the segment log below `directory`; `marker` proves that this machine shares it."""
        check_marker(marker)
        self._log = SegmentLog(directory / f"shard{self._index}", self.replay, self._writer)

    def mark(self) -> dict[str, Any]:
        """Return the current state, and start writing its steps to disk; `poll_mark` tells when that is done."""
        state, inserted = self.get_state(), self.replay.inserted
        log, writer, marks = self._log, self._writer, self._marks

        def record_mark() -> None:
            try:
                marks[inserted] = log.list_segments(inserted=inserted) if log is not None else []
            except OSError as error:
                marks[inserted] = [*writer.pop_failures(), error][0]  # the first names the cause

        if log is not None:
            log.flush()
        marks.pop(inserted, None)
        writer.submit(record_mark)
        return state

    def poll_mark(self, inserted: int) -> list[Any] | None:
        """Return the segments of the mark with `inserted` steps, or None while they are being written.

        The call does not wait, because learners need the shard meanwhile.

        Raises:
            OSError: Writing failed.

        """
        result = self._marks.get(inserted)
        for count in [count for count in list(self._marks) if count < inserted]:
            del self._marks[count]
        if isinstance(result, OSError):
            raise result
        return None if result is None else [segment.to_plain() for segment in result]

    def get_state(self) -> dict[str, Any]:
        """Return the state of buffer, sampler and senders, without the stored steps."""
        parts: dict[str, Any] = {"replay": self.replay, "sampler": self.sampler, "senders": self.senders}
        return {name: part.get_state() for name, part in parts.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state; `load` then fills in the steps."""
        self.replay.load_state(state["replay"])
        self.sampler.load_state(state["sampler"])
        self.senders.load_state(state["senders"])

    def load(self, segments: Sequence[Any]) -> str:
        """Fill the buffer from segments after `load_state`; return what is wrong with them, or an empty string."""
        try:
            if self._log is not None:
                self._log.load([SegmentRef.from_plain(plain) for plain in segments])
        except SegmentError as error:
            return str(error)
        return ""

    def prune(self, segments: Sequence[Any]) -> None:
        """Delete segments that are older than the newest of these and not among them, in the writer thread."""
        if self._log is not None:
            log, keep = self._log, [SegmentRef.from_plain(plain) for plain in segments]
            self._writer.submit(lambda: log.prune(keep))

    def truncate(self, segments: Sequence[Any]) -> None:
        """Delete all segments but these."""
        if self._log is not None:
            self._writer.wait()
            self._log.truncate(keep=[SegmentRef.from_plain(plain) for plain in segments])

    def close(self) -> None:
        """Stop the writer and the sampler."""
        self._writer.close()
        self.sampler.close()
