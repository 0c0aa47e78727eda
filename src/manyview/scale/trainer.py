"""Trainer of a run with actors: lines 4 to 8 of Algorithm 1 in actors, its replay in shards, lines 9 to 15 here."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from secrets import token_bytes
from time import monotonic
from typing import Any, Protocol

from torch import Tensor

from manyview.agents import Agent
from manyview.data import AsyncWriter, Batch, ReplayLog
from manyview.scale.actor_pool import ActorLost, ActorPool
from manyview.scale.batch_loader import BatchLoader
from manyview.scale.chunk_collector import get_policy_weights
from manyview.scale.ray_runtime import Handle, get_results, ray, translate_ray_errors
from manyview.scale.replay_shard import ReplayShard
from manyview.scale.shard_log import ShardedLog
from manyview.scale.shared_fs import create_marker
from manyview.training import RunConfig, factory
from manyview.training.off_policy import ReplayTrainer
from manyview.training.trainer import AdvanceResult, EngineError
from manyview.utils.json_io import is_count

MAX_CHUNKS_AHEAD = 2
"""Chunks that each actor may collect ahead of the updates."""
POLL_INTERVAL_S = 0.02
"""Interval at which a busy learner polls its actors; the time of a poll grows with their number."""
IDLE_WAIT_S = 0.2
"""Time that an idle learner waits for its actors before it checks for a stop."""
MAX_REJECTED_CHUNKS = 5
"""Rejected chunks of every actor after which a run without a single step fails."""
IDLE_WARNING_S, STARTUP_WARNING_S = 10.0, 60.0
"""Idle time after which the learner warns; longer at the start, while the first actors start."""


class PendingSteps:
    """Agent steps that actors have delivered and the learner has not consumed, with their simulator frames."""

    def __init__(self) -> None:
        self._chunks: deque[list[int]] = deque()  # steps, frames

    @property
    def steps(self) -> int:
        """Pending agent steps."""
        return sum(steps for steps, _ in self._chunks)

    @property
    def frames(self) -> int:
        """Simulator frames of the pending steps."""
        return sum(frames for _, frames in self._chunks)

    def add(self, steps: int, frames: int) -> None:
        """Append delivered steps with their frames."""
        if steps:
            self._chunks.append([steps, frames])

    def pop(self) -> int:
        """Remove the oldest step and return its frames; the frames of a chunk are spread over its steps."""
        chunk = self._chunks[0]
        frames = chunk[1] // chunk[0]
        chunk[0], chunk[1] = chunk[0] - 1, chunk[1] - frames
        if not chunk[0]:
            self._chunks.popleft()
        return frames

    def get_state(self) -> dict[str, Any]:
        """Return the pending chunks, for a checkpoint."""
        return {"chunks": [list(chunk) for chunk in self._chunks]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the pending chunks; raise `ValueError` if they are invalid."""
        chunks = [[*chunk] for chunk in state["chunks"]]
        if not all(len(chunk) == 2 and is_count(chunk[0], min_value=1) and is_count(chunk[1]) for chunk in chunks):
            raise ValueError(f"invalid pending steps: expected a list of steps and frames, got {chunks!r}")
        self._chunks = deque(chunks)


class IdleNotice:
    """Warning of a learner without pending steps, once per idle period."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._warn_after_s = STARTUP_WARNING_S
        self._has_warned = False

    def reset(self) -> None:
        """End the idle period."""
        self._since_s, self._warn_after_s, self._has_warned = None, IDLE_WARNING_S, False

    def get_messages(self, pool: ActorPool) -> list[str]:
        """Return the warning if it is due; call while no steps are pending."""
        self._since_s = self._since_s or monotonic()
        if self._has_warned or monotonic() - self._since_s < self._warn_after_s:
            return []
        self._has_warned = True
        sending = sum(slot.num_delivered > 0 for slot in pool.slots)
        return [
            f"no steps arrived for {self._warn_after_s:g} s and all due updates are done: waiting for the actors. "
            f"{sending} of {len(pool.slots)} have sent a chunk in their current incarnation"
        ]


class RejectionCounter:
    """Counter of rejected chunks that reports the 1st, 10th, 100th, ... of an actor, to bound the number of records."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def has_rejected_all(self, num_actors: int) -> bool:
        """Return whether each of `num_actors` has at least `MAX_REJECTED_CHUNKS` rejected chunks."""
        return len(self._counts) == num_actors and min(self._counts.values()) >= MAX_REJECTED_CHUNKS

    def record(self, actor: int, reason: str) -> list[str]:
        """Count a rejected chunk; return a message if it is to be reported."""
        self._counts[actor] += 1
        count = self._counts[actor]
        if count != 10 ** (len(str(count)) - 1):
            return []
        return [f"chunk of actor {actor} is rejected ({count} so far): {reason}"]


class LearnerGroup(Protocol):
    """Followers of a leader among several learners."""

    def broadcast_shards(self, shards: Sequence[Handle]) -> None:
        """Send the handles of the shards that batches come from."""

    def broadcast_agent(self, agent: Agent, step: int) -> None:
        """Copy the agent to the followers at this agent step."""

    def broadcast_update(self, step: int, shard_sizes: Sequence[int]) -> None:
        """Announce an update at this agent step, with the agent steps in each shard."""


class ActorLearnerTrainer(ReplayTrainer):
    """Trainer with the learner in this process, and actors and replay shards in others."""

    def __init__(self, config: RunConfig, *, leader: LearnerGroup | None = None) -> None:
        super().__init__(config)
        self._leader = leader
        config, count = self.config, self.config.scale.replay_shards
        # A core each: shards assemble batches and search neighbors while actors and learner work.
        remote = ray.remote(ReplayShard).options(num_cpus=1, max_restarts=0)
        part = replace(config, replay=replace(config.replay, directory=_to_absolute(config.replay.directory)))
        key = token_bytes(32)  # not in checkpoints: actors of an earlier process cannot send to these shards
        self.shards = [remote.remote(part, self.shapes, index=index, count=count, key=key) for index in range(count)]
        self.actor_pool = ActorPool(config, self.shapes, self.shards, key=key)
        self.pending = PendingSteps()
        self.batch_loader = BatchLoader(self.shards, self.device, shard_sizes=self.actor_pool.shard_sizes)
        self.sharded_log = ShardedLog(self.shards)
        self._shard_totals = [(0, 0)] * count
        """Known totals of transitions and frames inserted into each shard."""
        self._num_inserted = 0
        self._weights: Any = None
        self._published_version = -1
        self._idle_notice, self._rejections = IdleNotice(), RejectionCounter()
        self._polled_s = 0.0
        if leader is not None:
            leader.broadcast_shards(self.shards)
            leader.broadcast_agent(self.agent, self.counters.steps)

    def check_memory(self) -> None:
        """Check memory on a single machine; on several, every shard checks its own."""
        if sum(node["Alive"] for node in ray.nodes()) == 1:
            super().check_memory()

    @property
    def data_bytes(self) -> int:
        """Memory of the replay buffer, all shards together."""
        return factory.compute_replay_bytes(self.config, self.shapes, self.agent.bonus)

    @property
    def shard_capacity(self) -> int:
        """Capacity of a shard, in agent steps."""
        return self.config.replay.capacity // len(self.shards)

    @property
    def num_inserted(self) -> int:
        """Agent steps inserted into all shards at the last call of `get_state`."""
        return self._num_inserted

    @translate_ray_errors()
    def open_log(self, directory: Path, writer: AsyncWriter) -> ReplayLog:  # noqa: ARG002
        """Open the segment logs of all shards."""
        with create_marker(directory.absolute()) as marker:
            get_results([shard.open_log.remote(directory.absolute(), marker=marker) for shard in self.shards])
        return self.sharded_log

    @translate_ray_errors()
    def advance(self) -> AdvanceResult:
        """Consume one pending step with its update if it is due, or wait for actors."""
        episodes, messages = list[dict[str, Any]](), list[str]()
        if not self.pending.steps or monotonic() - self._polled_s > POLL_INTERVAL_S:
            self._request_chunks()
            episodes, messages = self._receive_chunks(wait_s=0.0 if self.pending.steps else IDLE_WAIT_S)
            self._polled_s = monotonic()
        if not self.pending.steps:
            return AdvanceResult(None, episodes, [*messages, *self._idle_notice.get_messages(self.actor_pool)])
        self._idle_notice.reset()
        self.counters.steps += 1
        self.counters.frames += self.pending.pop()
        return AdvanceResult(
            self.train_on_batch(self.batch_loader.sample()) if self.should_update else None, episodes, messages
        )

    def train_on_batch(self, batch: Batch) -> dict[str, Tensor] | None:
        """Update on a batch, together with the followers."""
        if self._leader is not None:
            self._leader.broadcast_update(self.counters.steps, self.actor_pool.shard_sizes)
        return super().train_on_batch(batch)

    @translate_ray_errors()
    def get_state(self) -> dict[str, Any]:
        """Return the state of learner and shards; the segment log holds the steps."""
        shards = self.sharded_log.mark()
        for index, state in enumerate(shards):  # includes chunks whose delivery is not polled yet
            self._add_pending(index, state["senders"]["transitions"], state["senders"]["frames"])
        self._num_inserted = sum(state["replay"]["inserted"] for state in shards)
        return {
            "env": None,
            **{name: owner.get_state() for name, owner in self._list_stateful().items()},
            "shards": shards,
        }

    @translate_ray_errors()
    def load_state(self, state: dict[str, Any], fill_replay: Callable[[], None]) -> None:
        """Restore the state of learner and shards, and fill the shards by `fill_replay`."""
        for name, owner in self._list_stateful().items():
            owner.load_state(state[name])
        parts = zip(self.shards, state["shards"], strict=True)
        get_results([shard.load_state.remote(part) for shard, part in parts])
        self.actor_pool.shard_sizes[:] = [
            min(part["replay"]["inserted"], self.shard_capacity) for part in state["shards"]
        ]
        self._shard_totals = [(part["senders"]["transitions"], part["senders"]["frames"]) for part in state["shards"]]
        fill_replay()
        if self._leader is not None:
            self._leader.broadcast_agent(self.agent, self.counters.steps)

    def rollback(self, agent: dict[str, Any]) -> None:
        """Restore an earlier state of the agent, also in followers and actors."""
        super().rollback(agent)
        self._published_version = -1
        if self._leader is not None:
            self._leader.broadcast_agent(self.agent, self.counters.steps)

    def close(self) -> None:
        """Kill actors and shards, and close the environment."""
        self.actor_pool.close()
        for shard in self.shards:
            ray.kill(shard)
        self.env.close()

    def _list_stateful(self) -> dict[str, Any]:
        return {"counters": self.counters, "agent": self.agent, "actor_pool": self.actor_pool, "pending": self.pending}

    def _request_chunks(self) -> None:
        """Request more steps, up to the end of the run and `MAX_CHUNKS_AHEAD` chunks per actor ahead of updates."""
        config, counters, pending = self.config, self.counters, self.pending
        steps, frames = counters.steps + pending.steps, counters.frames + pending.frames
        requested = self.actor_pool.requested_steps
        remaining = ceil((config.schedule.frames - frames) * (steps / frames if frames else 1))
        ahead = MAX_CHUNKS_AHEAD * config.scale.actors * config.scale.chunk_steps - pending.steps
        self.actor_pool.request_chunks(
            self._publish_weights(),
            step=steps + requested,
            max_steps=min(remaining, ahead) - requested,
            chunk_steps=max(1, min(config.scale.chunk_steps, remaining - requested)),
        )

    def _receive_chunks(self, *, wait_s: float) -> tuple[list[dict[str, Any]], list[str]]:
        """Poll the actors; return the records of finished episodes, and messages."""
        episodes: list[dict[str, Any]] = []
        messages: list[str] = []
        for event in self.actor_pool.poll(wait_s=wait_s):
            if isinstance(event, ActorLost):
                messages.append(f"actor {event.actor} is replaced: {event.reason}")
                continue
            index, result = self.actor_pool.get_shard_index(event.actor), event.result
            self._add_pending(index, result.transitions, result.frames)
            if result.rejection:
                messages += self._rejections.record(event.actor, result.rejection)
                if not any(self.actor_pool.shard_sizes) and self._rejections.has_rejected_all(
                    len(self.actor_pool.slots)
                ):
                    raise EngineError(f"all chunks of all actors are rejected. Last reason: {result.rejection}")
                continue
            self.counters.episodes += len(event.stats.episodes)
            episodes += event.stats.episodes
        return episodes, messages

    def _add_pending(self, index: int, transitions: int, frames: int) -> None:
        """Add the growth of a shard's totals, including chunks of actors that died before they could report."""
        known_transitions, known_frames = self._shard_totals[index]
        if transitions > known_transitions:
            self.pending.add(transitions - known_transitions, frames - known_frames)
            self._shard_totals[index] = transitions, frames

    def _publish_weights(self) -> Any:
        """Return the reference of the current policy weights, renewed every `scale.publish_every_updates` updates."""
        version = self.counters.updates // self.config.scale.publish_every_updates
        if version != self._published_version:
            self._weights, self._published_version = ray.put(get_policy_weights(self.agent)), version
        return self._weights


def _to_absolute(directory: str | None) -> str | None:
    return None if directory is None else str(Path(directory).absolute())
