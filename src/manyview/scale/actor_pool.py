"""The actors of a run: asked for chunks, replaced when they die or hang, and never waited for."""

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from manyview.scale.chunk_collector import ChunkCollector, CollectStats
from manyview.scale.ray_runtime import Handle, extract_cause, get_results, ray
from manyview.scale.replay_shard import InsertResult, sign_incarnation
from manyview.scale.shared_fs import enter_directory
from manyview.train import RunConfig
from manyview.train.factory import Shapes
from manyview.train.trainer import EngineError
from manyview.utils.json_io import is_count

CALLS_PER_ACTOR = 2
"""That wait at each actor, so that it never waits for a learner in mid-update."""
LATE_FACTOR = 4
"""Times the longest chunk of its life: a slow actor is no dead one, whatever the deadline says."""
GROWTH_FACTOR = 1.1
"""Times what shards were told of each other before they are told again."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.5, 60.0
"""Before the next life of an actor that died without having done anything."""
MAX_FAILED_STARTS = 4
"""Lives of every actor without anything, after which a run ends that never had a step."""


class Delivery(NamedTuple):
    stats: CollectStats
    result: InsertResult
    actor: int


class ActorLost(NamedTuple):
    actor: int
    reason: str


class Assignment(NamedTuple):
    """Whose place an actor takes, in which of its lives, and the shard that it sends to."""

    actor: int
    incarnation: int
    secret: bytes
    """By which the shard knows this life of this actor."""
    shard: Handle
    shard_index: int
    """Of the shard."""


class RemoteCollector:
    """A `ChunkCollector` that sends its parcels to a shard itself: pictures never pass through the learner.

    It takes its seat with the first call, so that it can stand by with everything imported.
    """

    def __init__(self, config: RunConfig, shapes: Shapes, *, working_dir: Path) -> None:
        enter_directory(working_dir)
        self._config, self._shapes = config, shapes
        self._collector: ChunkCollector | None = None

    def collect(
        self, weights: Any, *, assignment: Assignment, step: int, steps: int
    ) -> tuple[CollectStats, InsertResult]:
        if self._collector is None:
            self._collector = ChunkCollector(
                self._config, self._shapes, actor=assignment.actor, incarnation=assignment.incarnation
            )
        chunk, stats = self._collector.collect(weights, step=step, steps=steps)
        sent_s = monotonic()
        answer = assignment.shard.insert.remote(chunk._replace(secret=assignment.secret))
        receipts: list[InsertResult] = get_results([answer], shards=[assignment.shard_index])
        return replace(stats, waited_s=monotonic() - sent_s), receipts[0]


@dataclass
class Call:
    result: Any  # a reference
    steps: int


@dataclass
class ActorSlot:
    actor: int
    next_incarnation: int = 0
    """The number of its next one."""
    handle: Any = None
    calls: deque[Call] = field(default_factory=deque)
    started_s: float = 0.0
    """When it began what it is doing."""
    last_call: int = 0
    """The number of the last call to anybody that was one to it."""
    num_delivered: int = 0
    """Chunks in its present life."""
    max_chunk_s: float = 0.0
    """It needed for a chunk; the first counts only until the second is there, for it also loads and warms up."""
    backoff_s: float = 0.0
    """Before its next life."""


class ActorPool:
    def __init__(self, config: RunConfig, shapes: Shapes, shards: Sequence[Handle], *, key: bytes) -> None:
        self._config, self._shapes, self._shards, self._key = config, shapes, shards, key
        # Once: Ray keeps whatever it is made of for ever.
        self._actor_class = ray.remote(RemoteCollector).options(num_cpus=1, max_restarts=0)
        self.slots = [ActorSlot(actor) for actor in range(config.scale.actors)]
        self.shard_sizes = [0] * len(shards)
        """Steps that are in each shard."""
        self.has_delivered = False
        """Whether anybody ever has."""
        self._failed_starts = 0
        """Lives in which nothing was delivered."""
        self._standby: Any = None
        """One that stands by: to begin takes seconds, most of which are imports."""
        self._all_started = False
        """Whether there was a moment when every actor had delivered."""
        self._last_quota_update = (-1, 0)
        """How many sent to shards, and the steps in all of them, when those were last told."""
        self._num_calls = 0

    @property
    def requested_steps(self) -> int:
        """That somebody is busy with."""
        return sum(call.steps for member in self.slots for call in member.calls)

    def request_chunks(self, weights: Any, *, step: int, max_steps: int, chunk_steps: int) -> None:
        """For chunks of so many steps, of at most so many together; the first begins at the run's step `step`."""
        if chunk_steps > max_steps:  # nearly always: nothing is to be sorted then
            return
        for _ in range(CALLS_PER_ACTOR):
            # Where there is room for a few only they take turns, or the first of them would make all the steps.
            for slot in sorted(self.slots, key=lambda member: (len(member.calls), member.last_call)):
                if chunk_steps > max_steps:
                    return
                if len(slot.calls) >= CALLS_PER_ACTOR or not self._ensure_alive(slot):
                    continue
                if not slot.calls:
                    slot.started_s = monotonic()
                result = slot.handle.collect.remote(
                    weights, assignment=self._make_assignment(slot), step=step, steps=chunk_steps
                )
                slot.calls.append(Call(result, chunk_steps))
                self._num_calls += 1
                slot.last_call = self._num_calls
                step, max_steps = step + chunk_steps, max_steps - chunk_steps

    def poll(self, *, wait_s: float = 0.0) -> list[Delivery | ActorLost]:
        """What has come since, waiting so long for a first; and what became of whoever is late or dead."""
        references = [call.result for member in self.slots for call in member.calls]
        if wait_s and references:
            ray.wait(references, timeout=wait_s)
        elif wait_s:
            sleep(wait_s)
        # One look at all of them: a look at each of a thousand would take longer than an update.
        ready = set(ray.wait(references, num_returns=len(references), timeout=0)[0]) if references else set()
        events = [one for member in self.slots for one in self._poll_slot(member, ready)]
        self._update_shard_quotas()
        self._all_started = self._all_started or all(member.num_delivered for member in self.slots)
        if self._all_started and self._standby is None:  # not before, or it would be in their way
            self._standby = self._start_actor()
        return events

    def get_state(self) -> dict[str, Any]:
        return {"incarnations": [member.next_incarnation for member in self.slots]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Whoever is there now has lived before: its random numbers must not come again."""
        incarnations = state["incarnations"]
        if not all(is_count(life) for life in incarnations):
            raise ValueError(f"lives must be whole numbers, got {incarnations!r}")
        for slot in self.slots:
            slot.next_incarnation = max([slot.next_incarnation, *incarnations])

    def close(self) -> None:
        for slot in self.slots:
            if slot.handle is not None:
                ray.kill(slot.handle)
                slot.handle = None
        if self._standby is not None:
            ray.kill(self._standby)
            self._standby = None

    def _poll_slot(self, slot: ActorSlot, ready: Set[Any]) -> list[Delivery | ActorLost]:
        events: list[Delivery | ActorLost] = []
        while slot.calls and slot.calls[0].result in ready:
            try:
                stats, result = ray.get(slot.calls[0].result)
            except ray.exceptions.RayError as error:
                return [*events, self._kill_actor(slot, extract_cause(error))]
            events.append(Delivery(stats, result, slot.actor))
            self.shard_sizes[self.get_shard_index(slot.actor)] = result.size
            slot.calls.popleft()
            slot.started_s, slot.backoff_s = monotonic(), 0.0
            chunk_s = stats.seconds + stats.waited_s  # a slow shard is no fault of its senders
            slot.max_chunk_s = max(slot.max_chunk_s if slot.num_delivered > 1 else 0.0, chunk_s)
            slot.num_delivered += 1
            self.has_delivered = True
        scale = self._config.scale
        deadline_s = (
            max(scale.deadline_s, LATE_FACTOR * slot.max_chunk_s) if slot.num_delivered else scale.start_deadline_s
        )
        if slot.calls and monotonic() - slot.started_s > deadline_s:
            return [*events, self._kill_actor(slot, f"nothing came for {deadline_s:g} s")]
        return events

    def _kill_actor(self, slot: ActorSlot, reason: str) -> ActorLost:
        ray.kill(slot.handle)
        if not slot.num_delivered:  # it may never be able to
            slot.backoff_s = min(MAX_BACKOFF_S, max(MIN_BACKOFF_S, 2 * slot.backoff_s))
            self._failed_starts += 1
        if not self.has_delivered and self._failed_starts >= MAX_FAILED_STARTS * len(self.slots):
            raise EngineError(f"no actor can begin: {reason}")
        slot.handle, slot.started_s, slot.num_delivered, slot.max_chunk_s = None, monotonic(), 0, 0.0
        slot.calls.clear()
        self._last_quota_update = (-1, 0)  # the reason may be a shard that hangs, which shows when it is told something
        return ActorLost(slot.actor, reason)

    def _ensure_alive(self, slot: ActorSlot) -> bool:
        """Whether it can be asked; begins its next life if it is time."""
        if slot.handle is None:
            if monotonic() - slot.started_s < slot.backoff_s:
                return False
            slot.handle, self._standby = self._standby or self._start_actor(), None
            slot.next_incarnation += 1
        return True

    def _make_assignment(self, slot: ActorSlot) -> Assignment:
        incarnation, number = slot.next_incarnation - 1, self.get_shard_index(slot.actor)
        secret = sign_incarnation(self._key, slot.actor, incarnation)
        return Assignment(slot.actor, incarnation, secret, self._shards[number], number)

    def _start_actor(self) -> Handle:
        return self._actor_class.remote(self._config, self._shapes, working_dir=Path.cwd())

    def get_shard_index(self, actor: int) -> int:
        """The number of the one that an actor sends to."""
        return actor % len(self._shards)

    def _update_shard_quotas(self) -> None:
        """How many send, and what the other shards hold, if it is more than before: shares are measured by it.

        Raises if a shard is dead or hangs: no actor can make that good.
        """
        senders, total = sum(member.num_delivered > 0 for member in self.slots), sum(self.shard_sizes)
        if senders != self._last_quota_update[0] or total > GROWTH_FACTOR * self._last_quota_update[1]:
            sizes_by_shard = zip(self._shards, self.shard_sizes, strict=True)
            get_results(
                [shard.set_senders.remote(senders, steps_elsewhere=total - size) for shard, size in sizes_by_shard]
            )
            self._last_quota_update = senders, total
