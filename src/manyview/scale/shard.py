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

from manyview.data import Scribe, SegmentError, SegmentLog
from manyview.data.log import Entry
from manyview.data.pieces import Piece, add_piece, read_piece
from manyview.scale.shared import look_for
from manyview.train import RunConfig, build
from manyview.train.build import Shapes
from manyview.train.seeds import derived_seed
from manyview.utils.json_io import is_count

FAIR_SHARES = 2
"""An actor may have so many times what it would have if all had the same."""
MOST_REPEATS = 100
"""Frames that a step can have taken: of a run that is counted in frames nobody else decides the end."""


class Parcel(NamedTuple):
    """A piece with its sender, and a number that counts up: sent twice, it is taken once."""

    actor: int
    life: int
    """How often the actor had been replaced."""
    number: int
    frames: int
    """That its steps took."""
    piece: bytes
    secret: bytes = b""
    """`sign_incarnation` of its actor and life, which the learner gave to that process alone."""


def sign_incarnation(key: bytes, actor: int, life: int) -> bytes:
    """Return the secret by which shards with this key know one life of one actor."""
    return hmac.digest(key, b"%d %d" % (actor, life), "sha256")


class Receipt(NamedTuple):
    """What a shard has after a parcel. Totals, and not what came with it: an answer that is lost loses nothing."""

    transitions: int
    """That it has taken in all."""
    frames: int
    """That those took."""
    held: int
    """Steps that are in its ring."""
    refused: str = ""
    """Why the parcel was not taken."""


@dataclass
class Ledger:
    """Who sent what."""

    transitions: int = 0
    frames: int = 0
    last: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each actor: its life and the number of its last parcel."""
    pieces: deque[tuple[int, int]] = field(default_factory=deque)
    """What is in the ring, oldest first: an actor and how many steps of it."""
    held: Counter[int] = field(default_factory=Counter)
    """The same, by actor."""

    def seen(self, parcel: Parcel) -> bool:
        """Whether it was here before, or is of a life that is over."""
        return (parcel.life, parcel.number) <= self.last.get(parcel.actor, (-1, -1))

    def over_quota(self, parcel: Parcel, steps: int, *, actors: int, elsewhere: int) -> bool:
        total = self.held.total() + steps + elsewhere
        # Two parcels are nobody's flood: at the begin whoever is first has everything.
        allowed = max(FAIR_SHARES * steps, FAIR_SHARES / max(actors, FAIR_SHARES) * total)
        return self.held[parcel.actor] + steps > allowed

    def enter(self, parcel: Parcel, piece: Piece, *, capacity: int) -> None:
        self._hold(parcel.actor, len(piece.steps))
        while (too_many := self.held.total() - capacity) > 0:  # the ring has overwritten what was oldest
            actor, steps = self.pieces.popleft()
            self.held[actor] -= min(steps, too_many)
            if steps > too_many:
                self.pieces.appendleft((actor, steps - too_many))
        self.last[parcel.actor] = (parcel.life, parcel.number)
        self.transitions += piece.transitions
        self.frames += parcel.frames

    def _hold(self, actor: int, steps: int) -> None:
        self.pieces.append((actor, steps))
        self.held[actor] += steps

    def state(self) -> dict[str, Any]:
        """Who has how much, and not where it lies: that would be a line for every chunk."""
        held = {str(actor): held for actor, held in self.held.items()}
        return {"transitions": self.transitions, "frames": self.frames, "held": held}

    def load_state(self, state: dict[str, Any]) -> None:
        """Parcels of before are not sent again: their actors are gone."""
        if not all(map(is_count, (state["transitions"], state["frames"], *state["held"].values()))):
            raise ValueError("what a shard has taken must be whole numbers")
        self.transitions, self.frames, self.last = state["transitions"], state["frames"], {}
        self.pieces, self.held = deque(), Counter()
        for actor, held in state["held"].items():
            self._hold(int(actor), held)


class Shard:
    """One of `count` equal parts of the replay, with its own sampler and log."""

    def __init__(self, config: RunConfig, shapes: Shapes, *, index: int, count: int, key: bytes) -> None:
        part = replace(
            config.alone,
            seed=derived_seed(config.seed, "shard", index),
            replay=replace(
                config.replay,
                capacity=config.replay.capacity // count,
                batch_size=config.replay.batch_size // (config.scale.learners * count),
            ),
            machine=replace(config.machine, device="cpu"),
        )
        self._index, self._count, self._senders, self._key = index, count, config.scale.actors, key
        self.expect(config.scale.actors)
        low, high = config.scale.reward_low, config.scale.reward_high
        self._low, self._high = -inf if low is None else low, inf if high is None else high
        self.replay = build.replay(part, shapes)
        self.sampler = build.sampler(part, self.replay)
        self.ledger = Ledger()
        self._scribe = Scribe()
        self._log: SegmentLog | None = None
        self._marked: dict[int, list[Entry] | OSError] = {}
        """What became of marks, by the steps that there were."""

    def expect(self, actors: int, *, elsewhere: int = 0) -> None:
        """So many send to the shards, and so many steps are in the others: what their shares are measured by."""
        self._actors, self._elsewhere = actors, elsewhere

    def insert(self, parcel: Parcel) -> Receipt:
        """Take a parcel, or say why not. A wrong one changes nothing."""
        refused = self._strange(parcel)
        if not refused and not self.ledger.seen(parcel):
            refused = self._taken(parcel)
        return Receipt(self.ledger.transitions, self.ledger.frames, len(self.replay), refused)

    def _strange(self, parcel: Parcel) -> str:
        """What is wrong with what it says of itself, or nothing."""
        if not (is_count(parcel.actor) and parcel.actor in range(self._index, self._senders, self._count)):
            return f"no actor {parcel.actor!r} sends here"
        if not (is_count(parcel.life) and is_count(parcel.number)):
            return f"its life and number must be whole numbers, got {parcel.life!r} and {parcel.number!r}"
        # Signed instead of announced: whoever can call a shard could announce itself too.
        secret = sign_incarnation(self._key, parcel.actor, parcel.life)
        if not (isinstance(parcel.secret, bytes) and hmac.compare_digest(parcel.secret, secret)):
            return f"its sender is not actor {parcel.actor} in life {parcel.life}: it does not have that one's secret"
        return ""

    def _taken(self, parcel: Parcel) -> str:
        """Nothing, or why not."""
        try:
            piece = read_piece(parcel.piece, self.replay)
        except SegmentError as error:
            return str(error)
        rewards, actions, count = piece.rewards, piece.actions, piece.transitions
        if not (count and is_count(parcel.frames, least=count) and parcel.frames <= MOST_REPEATS * count):
            return f"{count} transitions in {parcel.frames} frames"
        if np.abs(actions).max() > 1:
            return f"actions from {actions.min():g} to {actions.max():g}, they lie within [-1, 1]"
        if rewards.min() < self._low or rewards.max() > self._high:
            return (
                f"rewards from {rewards.min():g} to {rewards.max():g}, declared were {self._low:g} to {self._high:g} "
                "(scale.reward_low, scale.reward_high)"
            )
        if self.ledger.over_quota(parcel, len(piece.steps), actors=self._actors, elsewhere=self._elsewhere):
            return f"more than {FAIR_SHARES} times its share of the replay"
        add_piece(self.replay, piece)
        self.ledger.enter(parcel, piece, capacity=self.replay.capacity)
        if self._log is not None:
            self._log.follow()
        return ""

    def sample(self) -> dict[str, NDArray[Any]]:
        """Its part of a batch; rows are numbered so that no two shards have the same."""
        batch = self.sampler.next()._asdict()
        batch["rows"] = batch["rows"] * self._count + self._index
        return {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in batch.items()}

    def keep_log(self, folder: Path, *, sign: Path) -> None:
        look_for(sign)
        self._log = SegmentLog(folder / f"shard{self._index}", self.replay, self._scribe)

    def mark(self) -> dict[str, Any]:
        """The state of this moment. Its steps are on the disk when `marked` has an answer."""
        state, inserted = self.state(), self.replay.inserted
        log, scribe, marked = self._log, self._scribe, self._marked

        def look() -> None:
            try:
                marked[inserted] = log.entries(inserted=inserted) if log is not None else []
            except OSError as error:
                marked[inserted] = [*scribe.failures(), error][0]  # the first says why

        if log is not None:
            log.cut()
        marked.pop(inserted, None)
        scribe.ask(look)
        return state

    def marked(self, inserted: int) -> list[Any] | None:
        """The segments of the state that had so many steps; None until they are written, OSError if that failed.

        Nobody waits here: the shard is wanted for other things.
        """
        found = self._marked.get(inserted)
        for count in [count for count in list(self._marked) if count < inserted]:
            del self._marked[count]
        if isinstance(found, OSError):
            raise found
        return None if found is None else [entry.plain() for entry in found]

    def state(self) -> dict[str, Any]:
        owners: dict[str, Any] = {"replay": self.replay, "sampler": self.sampler, "ledger": self.ledger}
        return {name: owner.state() for name, owner in owners.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.replay.load_state(state["replay"])
        self.sampler.load_state(state["sampler"])
        self.ledger.load_state(state["ledger"])

    def read(self, segments: Sequence[Any]) -> str:
        """Fill the replay, which has its state already; what is wrong with the segments, or nothing."""
        try:
            if self._log is not None:
                self._log.read([Entry.of(plain) for plain in segments])
        except SegmentError as error:
            return str(error)
        return ""

    def keep(self, segments: Sequence[Any]) -> None:
        if self._log is not None:
            log, wanted = self._log, [Entry.of(plain) for plain in segments]
            self._scribe.ask(lambda: log.keep(wanted))

    def forget(self, segments: Sequence[Any]) -> None:
        if self._log is not None:
            self._scribe.wait()
            self._log.forget(but=[Entry.of(plain) for plain in segments])

    def close(self) -> None:
        self._scribe.close()
        self.sampler.close()
