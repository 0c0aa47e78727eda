"""Pool of the actors of a run: requests chunks without blocking, and replaces actors that die or hang."""

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
from manyview.training import RunConfig
from manyview.training.factory import Shapes
from manyview.training.trainer import EngineError
from manyview.utils.json_io import is_count

CALLS_PER_ACTOR = 2
"""Calls queued at each actor, so that it never waits for a learner during an update."""
LATE_FACTOR = 4
"""Multiple of the longest chunk time of an incarnation that extends the deadline, so that slow actors are kept."""
GROWTH_FACTOR = 1.1
"""Growth of the stored steps after which shards receive each other's sizes again."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.5, 60.0
"""Delay before the next incarnation of an actor that delivered nothing; it doubles each time."""
MAX_FAILED_STARTS = 4
"""Mean number of incarnations per actor without any delivery after which a run without a single step fails."""


class Delivery(NamedTuple):
    """A finished call of an actor."""

    stats: CollectStats
    result: InsertResult
    actor: int


class ActorLost(NamedTuple):
    """An actor that died or missed its deadline."""

    actor: int
    reason: str


class Assignment(NamedTuple):
    """Identity of an actor process, and the shard that it sends to."""

    actor: int
    incarnation: int
    secret: bytes
    """Proof of actor and incarnation for the shard."""
    shard: Handle
    shard_index: int


class RemoteCollector:
    """`ChunkCollector` that sends its chunks directly to a shard, so that images never pass through the learner.

    The first call assigns the actor, so that a process can stand by with everything imported.
    """

    def __init__(self, config: RunConfig, shapes: Shapes, *, working_dir: Path) -> None:
        enter_directory(working_dir)
        self._config, self._shapes = config, shapes
        self._collector: ChunkCollector | None = None

    def collect(
        self, weights: Any, *, assignment: Assignment, step: int, steps: int
    ) -> tuple[CollectStats, InsertResult]:
        """Collect a chunk with these weights and insert it into the shard of the assignment."""
        if self._collector is None:
            self._collector = ChunkCollector(
                self._config, self._shapes, actor=assignment.actor, incarnation=assignment.incarnation
            )
        chunk, stats = self._collector.collect(weights, step=step, steps=steps)
        sent_s = monotonic()
        answer = assignment.shard.insert.remote(chunk._replace(secret=assignment.secret))
        insert_results: list[InsertResult] = get_results([answer], shards=[assignment.shard_index])
        return replace(stats, waited_s=monotonic() - sent_s), insert_results[0]


@dataclass
class Call:
    """A pending call of `RemoteCollector.collect`."""

    result: Any  # Ray reference
    steps: int
    """Requested agent steps."""


@dataclass
class ActorSlot:
    """State of one actor across its incarnations."""

    actor: int
    next_incarnation: int = 0
    """Number of the next incarnation."""
    handle: Any = None
    """Handle of the running process, or None."""
    calls: deque[Call] = field(default_factory=deque)
    """Pending calls, oldest first."""
    started_s: float = 0.0
    """Start time of the current call, or end time of the last incarnation."""
    last_call: int = 0
    """Number of the last call to this actor, counted over all actors."""
    num_delivered: int = 0
    """Chunks delivered by the current incarnation."""
    max_chunk_s: float = 0.0
    """Longest time of a chunk; the first one, which includes startup, counts only until the second is delivered."""
    backoff_s: float = 0.0
    """Delay before the next incarnation."""


class ActorPool:
    """Actors of a run and the chunks requested from them."""

    def __init__(self, config: RunConfig, shapes: Shapes, shards: Sequence[Handle], *, key: bytes) -> None:
        self._config, self._shapes, self._shards, self._key = config, shapes, shards, key
        # Created once: Ray never releases the definition of an actor class.
        self._actor_class = ray.remote(RemoteCollector).options(num_cpus=1, max_restarts=0)
        self.slots = [ActorSlot(actor) for actor in range(config.scale.actors)]
        self.shard_sizes = [0] * len(shards)
        """Agent steps stored in each shard."""
        self.has_delivered = False
        """True once any actor has delivered a chunk."""
        self._failed_starts = 0
        """Number of incarnations that delivered nothing."""
        self._standby: Any = None
        """Standby process: a start takes seconds, mostly for imports."""
        self._all_started = False
        """True once all current incarnations had delivered at the same time."""
        self._last_quota_update = (-1, 0)
        """Number of senders and stored steps at the last update of the shards."""
        self._num_calls = 0

    @property
    def requested_steps(self) -> int:
        """Agent steps that are requested and not delivered."""
        return sum(call.steps for slot in self.slots for call in slot.calls)

    def request_chunks(self, weights: Any, *, step: int, max_steps: int, chunk_steps: int) -> None:
        """Request chunks of `chunk_steps` agent steps, at most `max_steps` in total.

        The first chunk starts at agent step `step` of the run. `weights` is a Ray reference to the policy weights.
        """
        if chunk_steps > max_steps:  # the usual case: no sorting needed
            return
        for _ in range(CALLS_PER_ACTOR):
            # Round-robin: with few chunks to request, the first actors would collect all steps.
            for slot in sorted(self.slots, key=lambda slot: (len(slot.calls), slot.last_call)):
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
        """Return new deliveries and lost actors, waiting up to `wait_s` for the first delivery.

        Raises:
            EngineError: No actor can start, or a shard is dead or hangs.

        """
        references = [call.result for slot in self.slots for call in slot.calls]
        if wait_s and references:
            ray.wait(references, timeout=wait_s)
        elif wait_s:
            sleep(wait_s)
        # One call for all: polling a thousand actors one by one would take longer than an update.
        ready = set(ray.wait(references, num_returns=len(references), timeout=0)[0]) if references else set()
        events = [event for slot in self.slots for event in self._poll_slot(slot, ready)]
        self._update_shard_quotas()
        self._all_started = self._all_started or all(slot.num_delivered for slot in self.slots)
        if self._all_started and self._standby is None:  # only now, so that it does not slow down their start
            self._standby = self._start_actor()
        return events

    def get_shard_index(self, actor: int) -> int:
        """Return the index of the shard that an actor sends to."""
        return actor % len(self._shards)

    def get_state(self) -> dict[str, Any]:
        """Return the incarnation numbers, for a checkpoint."""
        return {"incarnations": [slot.next_incarnation for slot in self.slots]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue after the highest incarnation of the checkpoint, so that random streams do not repeat."""
        incarnations = state["incarnations"]
        if not all(is_count(incarnation) for incarnation in incarnations):
            raise ValueError(f"invalid actor pool state: expected incarnations as integers >= 0, got {incarnations!r}")
        for slot in self.slots:
            slot.next_incarnation = max([slot.next_incarnation, *incarnations])

    def close(self) -> None:
        """Kill all actors."""
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
            chunk_s = stats.seconds + stats.waited_s  # waiting for a slow shard counts, as senders cannot avoid it
            slot.max_chunk_s = max(slot.max_chunk_s if slot.num_delivered > 1 else 0.0, chunk_s)
            slot.num_delivered += 1
            self.has_delivered = True
        scale = self._config.scale
        deadline_s = (
            max(scale.deadline_s, LATE_FACTOR * slot.max_chunk_s) if slot.num_delivered else scale.start_deadline_s
        )
        if slot.calls and monotonic() - slot.started_s > deadline_s:
            return [*events, self._kill_actor(slot, f"no chunk within {deadline_s:g} s")]
        return events

    def _kill_actor(self, slot: ActorSlot, reason: str) -> ActorLost:
        ray.kill(slot.handle)
        if not slot.num_delivered:  # it may fail on every start
            slot.backoff_s = min(MAX_BACKOFF_S, max(MIN_BACKOFF_S, 2 * slot.backoff_s))
            self._failed_starts += 1
        if not self.has_delivered and self._failed_starts >= MAX_FAILED_STARTS * len(self.slots):
            raise EngineError(f"no actor can start: {reason}")
        slot.handle, slot.started_s, slot.num_delivered, slot.max_chunk_s = None, monotonic(), 0, 0.0
        slot.calls.clear()
        self._last_quota_update = (-1, 0)  # the cause may be a hanging shard, which the next update reveals
        return ActorLost(slot.actor, reason)

    def _ensure_alive(self, slot: ActorSlot) -> bool:
        """Start the next incarnation if it is due; return whether the actor accepts calls."""
        if slot.handle is None:
            if monotonic() - slot.started_s < slot.backoff_s:
                return False
            slot.handle, self._standby = self._standby or self._start_actor(), None
            slot.next_incarnation += 1
        return True

    def _make_assignment(self, slot: ActorSlot) -> Assignment:
        incarnation, shard_index = slot.next_incarnation - 1, self.get_shard_index(slot.actor)
        secret = sign_incarnation(self._key, slot.actor, incarnation)
        return Assignment(slot.actor, incarnation, secret, self._shards[shard_index], shard_index)

    def _start_actor(self) -> Handle:
        return self._actor_class.remote(self._config, self._shapes, working_dir=Path.cwd())

    def _update_shard_quotas(self) -> None:
        """Send the number of senders and the steps in other shards to each shard, if they have changed enough.

        Shards compute quotas from them. Raises if a shard is dead or hangs, which no actor can compensate.
        """
        senders, total = sum(slot.num_delivered > 0 for slot in self.slots), sum(self.shard_sizes)
        if senders != self._last_quota_update[0] or total > GROWTH_FACTOR * self._last_quota_update[1]:
            sizes_by_shard = zip(self._shards, self.shard_sizes, strict=True)
            get_results(
                [shard.set_senders.remote(senders, steps_elsewhere=total - size) for shard, size in sizes_by_shard]
            )
            self._last_quota_update = senders, total
