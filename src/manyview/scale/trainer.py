"""Steps that actors have delivered and the learner has not come to yet."""

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
from manyview.train import RunConfig, factory
from manyview.train.off_policy import ReplayTrainer
from manyview.train.trainer import AdvanceResult, EngineError
from manyview.utils.json_io import is_count


class PendingSteps:
    """Steps are taken one by one, with the frames they took, so that a learner goes on as if it had played them."""

    def __init__(self) -> None:
        self._chunks: deque[list[int]] = deque()  # steps, frames

    @property
    def steps(self) -> int:
        return sum(steps for steps, _ in self._chunks)

    @property
    def frames(self) -> int:
        return sum(frames for _, frames in self._chunks)

    def add(self, steps: int, frames: int) -> None:
        if steps:
            self._chunks.append([steps, frames])

    def pop(self) -> int:
        """One step; its frames. Those of a chunk are spread over its steps."""
        chunk = self._chunks[0]
        frames = chunk[1] // chunk[0]
        chunk[0], chunk[1] = chunk[0] - 1, chunk[1] - frames
        if not chunk[0]:
            self._chunks.popleft()
        return frames

    def get_state(self) -> dict[str, Any]:
        return {"chunks": [list(chunk) for chunk in self._chunks]}

    def load_state(self, state: dict[str, Any]) -> None:
        chunks = [[*chunk] for chunk in state["chunks"]]
        if not all(len(chunk) == 2 and is_count(chunk[0], min_value=1) and is_count(chunk[1]) for chunk in chunks):
            raise ValueError(f"a backlog is a list of steps and frames, got {chunks!r}")
        self._chunks = deque(chunks)


MAX_CHUNKS_AHEAD = 2
"""So many chunks of each actor may be collected before the updates that they are for."""
POLL_INTERVAL_S = 0.02
"""A learner with work looks at its actors, and not at every step: the more there are, the longer a look takes."""
IDLE_WAIT_S = 0.2
"""How long a learner without work looks at its actors before it looks elsewhere."""
MAX_REJECTED_CHUNKS = 5
"""Refused chunks of every actor, after which a run ends that never had a step."""
IDLE_WARNING_S, STARTUP_WARNING_S = 10.0, 60.0
"""A learner without work says so; the first actors have to start."""


class LearnerGroup(Protocol):
    """Where there are several learners: how the others are told."""

    def broadcast_shards(self, shards: Sequence[Handle]) -> None:
        """Where batches come from."""

    def broadcast_agent(self, agent: Agent, step: int) -> None:
        """That the agent is another now, at this agent step."""

    def broadcast_update(self, step: int, shard_sizes: Sequence[int]) -> None:
        """That an update follows, at this agent step and with so many steps in each shard."""


class ActorLearnerTrainer(ReplayTrainer):
    """The learner of a run, its actors and its shards."""

    def __init__(self, config: RunConfig, *, leader: LearnerGroup | None = None) -> None:
        super().__init__(config)
        self._leader = leader
        config, count = self.config, self.config.scale.replay_shards
        remote = ray.remote(ReplayShard).options(num_cpus=0, max_restarts=0)
        part = replace(config, replay=replace(config.replay, folder=_to_absolute(config.replay.folder)))
        key = token_bytes(32)  # of this process: a checkpoint has none, so an actor of before cannot come back
        self.shards = [remote.remote(part, self.shapes, index=index, count=count, key=key) for index in range(count)]
        self.actor_pool = ActorPool(config, self.shapes, self.shards, key=key)
        self.pending = PendingSteps()
        self.batch_loader = BatchLoader(self.shards, self.device, shard_sizes=self.actor_pool.shard_sizes)
        self.sharded_log = ShardedLog(self.shards)
        self._shard_totals = [(0, 0)] * count
        """Transitions and frames that each shard was known to have taken."""
        self._inserted = 0
        self._weights: Any = None
        self._published_version = -1
        self._idle_notice, self._rejections = IdleNotice(), RejectionCounter()
        self._polled_s = 0.0
        if leader is not None:
            leader.broadcast_shards(self.shards)
            leader.broadcast_agent(self.agent, self.counters.steps)

    def check_memory(self) -> None:
        """On several machines every shard looks where it lies."""
        if sum(node["Alive"] for node in ray.nodes()) == 1:
            super().check_memory()

    @property
    def data_bytes(self) -> int:
        return factory.compute_replay_bytes(self.config, self.shapes)

    @property
    def shard_capacity(self) -> int:
        return self.config.replay.capacity // len(self.shards)

    @property
    def num_inserted(self) -> int:
        """At the last `state`."""
        return self._inserted

    @translate_ray_errors()
    def open_log(self, directory: Path, writer: AsyncWriter) -> ReplayLog:  # noqa: ARG002
        with create_marker(directory.absolute()) as marker:
            get_results([shard.open_log.remote(directory.absolute(), marker=marker) for shard in self.shards])
        return self.sharded_log

    @translate_ray_errors()
    def advance(self) -> AdvanceResult:
        """A step of the backlog with its update, or a look at the actors that waits for them."""
        episodes, news = list[dict[str, Any]](), list[str]()
        if not self.pending.steps or monotonic() - self._polled_s > POLL_INTERVAL_S:
            self._request_chunks()
            episodes, news = self._receive_chunks(wait_s=0.0 if self.pending.steps else IDLE_WAIT_S)
            self._polled_s = monotonic()
        if not self.pending.steps:
            return AdvanceResult(None, episodes, [*news, *self._idle_notice.get_messages(self.actor_pool)])
        self._idle_notice.reset()
        self.counters.steps += 1
        self.counters.frames += self.pending.pop()
        return AdvanceResult(
            self.train_on_batch(self.batch_loader.sample()) if self.should_update else None, episodes, news
        )

    def train_on_batch(self, batch: Batch) -> dict[str, Tensor] | None:
        if self._leader is not None:
            self._leader.broadcast_update(self.counters.steps, self.actor_pool.shard_sizes)
        return super().train_on_batch(batch)

    @translate_ray_errors()
    def get_state(self) -> dict[str, Any]:
        shards = self.sharded_log.mark()
        for index, state in enumerate(shards):  # also what is taken and not answered yet
            self._add_pending(index, state["senders"]["transitions"], state["senders"]["frames"])
        self._inserted = sum(state["replay"]["inserted"] for state in shards)
        return {
            "env": None,
            **{name: owner.get_state() for name, owner in self._list_stateful().items()},
            "shards": shards,
        }

    @translate_ray_errors()
    def load_state(self, state: dict[str, Any], fill_replay: Callable[[], None]) -> None:
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

    def _list_stateful(self) -> dict[str, Any]:
        return {"counters": self.counters, "agent": self.agent, "actor_pool": self.actor_pool, "pending": self.pending}

    def rollback(self, agent: dict[str, Any]) -> None:
        super().rollback(agent)
        self._published_version = -1
        if self._leader is not None:
            self._leader.broadcast_agent(self.agent, self.counters.steps)

    def close(self) -> None:
        self.actor_pool.close()
        for shard in self.shards:
            ray.kill(shard)
        self.env.close()

    def _request_chunks(self) -> None:
        """For more steps: not beyond the end of the run, and not far ahead of the updates."""
        config, clock, pending = self.config, self.counters, self.pending
        steps, frames = clock.steps + pending.steps, clock.frames + pending.frames
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
        """Episodes that ended, and news."""
        episodes: list[dict[str, Any]] = []
        news: list[str] = []
        for event in self.actor_pool.poll(wait_s=wait_s):
            if isinstance(event, ActorLost):
                news.append(f"actor {event.actor} is replaced: {event.reason}")
                continue
            index, result = self.actor_pool.get_shard_index(event.actor), event.result
            self._add_pending(index, result.transitions, result.frames)
            if result.rejection:
                news += self._rejections.record(event.actor, result.rejection)
                if not any(self.actor_pool.shard_sizes) and self._rejections.has_rejected_all(
                    len(self.actor_pool.slots)
                ):
                    raise EngineError(f"of every actor every chunk is refused, the last one: {result.rejection}")
                continue
            self.counters.episodes += len(event.stats.episodes)
            episodes += event.stats.episodes
        return episodes, news

    def _add_pending(self, index: int, transitions: int, frames: int) -> None:
        """What a shard has taken in all, from whomever: also an actor that died before it could tell."""
        known = self._shard_totals[index]
        if transitions > known[0]:
            self.pending.add(transitions - known[0], frames - known[1])
            self._shard_totals[index] = transitions, frames

    def _publish_weights(self) -> Any:
        version = self.counters.updates // self.config.scale.publish_every_updates
        if version != self._published_version:
            self._weights, self._published_version = ray.put(get_policy_weights(self.agent)), version
        return self._weights


def _to_absolute(directory: str | None) -> str | None:
    """For processes that are elsewhere."""
    return None if directory is None else str(Path(directory).absolute())


class IdleNotice:
    """A learner that has used up its steps says so, once."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._warn_after_s = STARTUP_WARNING_S
        self._has_warned = False

    def reset(self) -> None:
        self._since_s, self._warn_after_s, self._has_warned = None, IDLE_WARNING_S, False

    def get_messages(self, pool: ActorPool) -> list[str]:
        self._since_s = self._since_s or monotonic()
        if self._has_warned or monotonic() - self._since_s < self._warn_after_s:
            return []
        self._has_warned = True
        sending = sum(member.num_delivered > 0 for member in pool.slots)
        return [
            f"no steps have come for {self._warn_after_s:g} s and every update that was due is made: waiting for the "
            f"actors, of which {sending} of {len(pool.slots)} have sent something in their present life"
        ]


class RejectionCounter:
    """Told at the first, tenth, hundredth ... of an actor: somebody who floods must not flood the records."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def has_rejected_all(self, num_actors: int) -> bool:
        """Whether each of so many was refused several times."""
        return len(self._counts) == num_actors and min(self._counts.values()) >= MAX_REJECTED_CHUNKS

    def record(self, actor: int, reason: str) -> list[str]:
        self._counts[actor] += 1
        count = self._counts[actor]
        if count != 10 ** (len(str(count)) - 1):
            return []
        return [f"a chunk of actor {actor} is refused ({count} so far): {reason}"]
