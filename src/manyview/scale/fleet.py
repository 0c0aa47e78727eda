"""The actors of a run: asked for chunks, replaced when they die or hang, and never waited for."""

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from manyview.scale.collector import Collected, Collector
from manyview.scale.engine import Handle, answers_of, cause_of, ray
from manyview.scale.shard import Receipt, sign_incarnation
from manyview.scale.shared import go_to
from manyview.train import RunConfig
from manyview.train.build import Shapes
from manyview.train.trainer import EngineError
from manyview.utils.json_io import is_count

CALLS = 2
"""That wait at each actor, so that it never waits for a learner in mid-update."""
LATE = 4
"""Times the longest chunk of its life: a slow actor is no dead one, whatever the deadline says."""
GROWN = 1.1
"""Times what shards were told of each other before they are told again."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
"""Before the next life of an actor that died without having done anything."""
STILLBORN = 4
"""Lives of every actor without anything, after which a run ends that never had a step."""


class Delivered(NamedTuple):
    collected: Collected
    receipt: Receipt
    actor: int


class Lost(NamedTuple):
    actor: int
    reason: str


class Seat(NamedTuple):
    """Whose place an actor takes, in which of its lives, and the shard that it sends to."""

    actor: int
    life: int
    secret: bytes
    """By which the shard knows this life of this actor."""
    shard: Handle
    number: int
    """Of the shard."""


class SendingCollector:
    """A `Collector` that sends its parcels to a shard itself: pictures never pass through the learner.

    It takes its seat with the first call, so that it can stand by with everything imported.
    """

    def __init__(self, config: RunConfig, shapes: Shapes, *, here: Path) -> None:
        go_to(here)
        self._config, self._shapes = config, shapes
        self._collector: Collector | None = None

    def collect(self, weights: Any, *, seat: Seat, step: int, steps: int) -> tuple[Collected, Receipt]:
        if self._collector is None:
            self._collector = Collector(self._config, self._shapes, actor=seat.actor, life=seat.life)
        parcel, collected = self._collector.collect(weights, step=step, steps=steps)
        sent_s = monotonic()
        answer = seat.shard.insert.remote(parcel._replace(secret=seat.secret))
        receipts: list[Receipt] = answers_of([answer], shards=[seat.number])
        return replace(collected, waited_s=monotonic() - sent_s), receipts[0]


@dataclass
class Call:
    answer: Any  # a reference
    steps: int


@dataclass
class Member:
    actor: int
    life: int = 0
    """The number of its next one."""
    handle: Any = None
    calls: deque[Call] = field(default_factory=deque)
    since_s: float = 0.0
    """When it began what it is doing."""
    asked: int = 0
    """The number of the last call to anybody that was one to it."""
    delivered: int = 0
    """Chunks in its present life."""
    slowest_s: float = 0.0
    """It needed for a chunk; the first counts only until the second is there, for it also loads and warms up."""
    pause_s: float = 0.0
    """Before its next life."""


class Fleet:
    def __init__(self, config: RunConfig, shapes: Shapes, shards: Sequence[Handle], *, key: bytes) -> None:
        self._config, self._shapes, self._shards, self._key = config, shapes, shards, key
        # Once: Ray keeps whatever it is made of for ever.
        self._actors = ray.remote(SendingCollector).options(num_cpus=1, max_restarts=0)
        self.members = [Member(actor) for actor in range(config.scale.actors)]
        self.held = [0] * len(shards)
        """Steps that are in each shard."""
        self.has_delivered = False
        """Whether anybody ever has."""
        self._stillborn = 0
        """Lives in which nothing was delivered."""
        self._spare: Any = None
        """One that stands by: to begin takes seconds, most of which are imports."""
        self._all_came = False
        """Whether there was a moment when every actor had delivered."""
        self._told = (-1, 0)
        """How many sent to shards, and the steps in all of them, when those were last told."""
        self._calls = 0

    @property
    def asked_steps(self) -> int:
        """That somebody is busy with."""
        return sum(call.steps for member in self.members for call in member.calls)

    def ask(self, weights: Any, *, step: int, most_steps: int, chunk_steps: int) -> None:
        """For chunks of so many steps, of at most so many together; the first begins at the run's step `step`."""
        if chunk_steps > most_steps:  # nearly always: nothing is to be sorted then
            return
        for _ in range(CALLS):
            # Where there is room for a few only they take turns, or the first of them would make all the steps.
            for member in sorted(self.members, key=lambda member: (len(member.calls), member.asked)):
                if chunk_steps > most_steps:
                    return
                if len(member.calls) >= CALLS or not self._lives(member):
                    continue
                if not member.calls:
                    member.since_s = monotonic()
                answer = member.handle.collect.remote(weights, seat=self._seat(member), step=step, steps=chunk_steps)
                member.calls.append(Call(answer, chunk_steps))
                self._calls += 1
                member.asked = self._calls
                step, most_steps = step + chunk_steps, most_steps - chunk_steps

    def tend(self, *, wait_s: float = 0.0) -> list[Delivered | Lost]:
        """What has come since, waiting so long for a first; and what became of whoever is late or dead."""
        asked = [call.answer for member in self.members for call in member.calls]
        if wait_s and asked:
            ray.wait(asked, timeout=wait_s)
        elif wait_s:
            sleep(wait_s)
        # One look at all of them: a look at each of a thousand would take longer than an update.
        answered = set(ray.wait(asked, num_returns=len(asked), timeout=0)[0]) if asked else set()
        found = [one for member in self.members for one in self._tended(member, answered)]
        self._tell_shards()
        self._all_came = self._all_came or all(member.delivered for member in self.members)
        if self._all_came and self._spare is None:  # not before, or it would be in their way
            self._spare = self._begun()
        return found

    def state(self) -> dict[str, Any]:
        return {"lives": [member.life for member in self.members]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Whoever is there now has lived before: its random numbers must not come again."""
        lives = state["lives"]
        if not all(is_count(life) for life in lives):
            raise ValueError(f"lives must be whole numbers, got {lives!r}")
        for member in self.members:
            member.life = max([member.life, *lives])

    def close(self) -> None:
        for member in self.members:
            if member.handle is not None:
                ray.kill(member.handle)
                member.handle = None
        if self._spare is not None:
            ray.kill(self._spare)
            self._spare = None

    def _tended(self, member: Member, answered: Set[Any]) -> list[Delivered | Lost]:
        found: list[Delivered | Lost] = []
        while member.calls and member.calls[0].answer in answered:
            try:
                collected, receipt = ray.get(member.calls[0].answer)
            except ray.exceptions.RayError as error:
                return [*found, self._end(member, cause_of(error))]
            found.append(Delivered(collected, receipt, member.actor))
            self.held[self.shard_of(member.actor)] = receipt.held
            member.calls.popleft()
            member.since_s, member.pause_s = monotonic(), 0.0
            needed_s = collected.seconds + collected.waited_s  # a slow shard is no fault of its senders
            member.slowest_s = max(member.slowest_s if member.delivered > 1 else 0.0, needed_s)
            member.delivered += 1
            self.has_delivered = True
        scale = self._config.scale
        deadline_s = max(scale.deadline_s, LATE * member.slowest_s) if member.delivered else scale.start_deadline_s
        if member.calls and monotonic() - member.since_s > deadline_s:
            return [*found, self._end(member, f"nothing came for {deadline_s:g} s")]
        return found

    def _end(self, member: Member, reason: str) -> Lost:
        ray.kill(member.handle)
        if not member.delivered:  # it may never be able to
            member.pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * member.pause_s))
            self._stillborn += 1
        if not self.has_delivered and self._stillborn >= STILLBORN * len(self.members):
            raise EngineError(f"no actor can begin: {reason}")
        member.handle, member.since_s, member.delivered, member.slowest_s = None, monotonic(), 0, 0.0
        member.calls.clear()
        self._told = (-1, 0)  # the reason may be a shard that hangs, which shows when it is told something
        return Lost(member.actor, reason)

    def _lives(self, member: Member) -> bool:
        """Whether it can be asked; begins its next life if it is time."""
        if member.handle is None:
            if monotonic() - member.since_s < member.pause_s:
                return False
            member.handle, self._spare = self._spare or self._begun(), None
            member.life += 1
        return True

    def _seat(self, member: Member) -> Seat:
        life, number = member.life - 1, self.shard_of(member.actor)
        secret = sign_incarnation(self._key, member.actor, life)
        return Seat(member.actor, life, secret, self._shards[number], number)

    def _begun(self) -> Handle:
        return self._actors.remote(self._config, self._shapes, here=Path.cwd())

    def shard_of(self, actor: int) -> int:
        """The number of the one that an actor sends to."""
        return actor % len(self._shards)

    def _tell_shards(self) -> None:
        """How many send, and what the other shards hold, if it is more than before: shares are measured by it.

        Raises if a shard is dead or hangs: no actor can make that good.
        """
        senders, total = sum(member.delivered > 0 for member in self.members), sum(self.held)
        if senders != self._told[0] or total > GROWN * self._told[1]:
            each = zip(self._shards, self.held, strict=True)
            answers_of([shard.expect.remote(senders, elsewhere=total - held) for shard, held in each])
            self._told = senders, total
