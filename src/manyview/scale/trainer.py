"""Algorithm 1 with its lines 4 to 8 in many actors, its replay in shards, and lines 9 to 15 here."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from secrets import token_bytes
from time import monotonic
from typing import Any, Protocol

from torch import Tensor

from manyview.agents import Agent
from manyview.data import Batch, Log, Scribe
from manyview.scale.backlog import Backlog
from manyview.scale.batches import Batches
from manyview.scale.collector import weights_of
from manyview.scale.engine import Handle, answers_of, in_a_line, ray
from manyview.scale.fleet import Fleet, Lost
from manyview.scale.logs import ShardLogs
from manyview.scale.shard import Shard
from manyview.scale.shared import seen_by_all
from manyview.train import RunConfig, build
from manyview.train.off_policy import FromReplay
from manyview.train.trainer import Advance, EngineError

AHEAD_CHUNKS = 2
"""So many chunks of each actor may be collected before the updates that they are for."""
LOOK_EVERY_S = 0.02
"""A learner with work looks at its actors, and not at every step: the more there are, the longer a look takes."""
PATIENCE_S = 0.2
"""How long a learner without work looks at its actors before it looks elsewhere."""
HOPELESS = 5
"""Refused chunks of every actor, after which a run ends that never had a step."""
SAID_AFTER_S, FIRST_SAID_AFTER_S = 10.0, 60.0
"""A learner without work says so; the first actors have to start."""


class Leading(Protocol):
    """Where there are several learners: how the others are told."""

    def meet(self, shards: Sequence[Handle]) -> None:
        """Where batches come from."""

    def hand_over(self, agent: Agent, step: int) -> None:
        """That the agent is another now, at this agent step."""

    def lead(self, step: int, held: Sequence[int]) -> None:
        """That an update follows, at this agent step and with so many steps in each shard."""


class ManyActors(FromReplay):
    """The learner of a run, its actors and its shards."""

    def __init__(self, config: RunConfig, *, leader: Leading | None = None) -> None:
        super().__init__(config)
        self._leader = leader
        config, count = self.config, self.config.scale.replay_shards
        remote = ray.remote(Shard).options(num_cpus=0, max_restarts=0)
        part = replace(config, replay=replace(config.replay, folder=_absolute(config.replay.folder)))
        key = token_bytes(32)  # of this process: a checkpoint has none, so an actor of before cannot come back
        self.shards = [remote.remote(part, self.shapes, index=index, count=count, key=key) for index in range(count)]
        self.fleet = Fleet(config, self.shapes, self.shards, key=key)
        self.backlog = Backlog()
        self.batches = Batches(self.shards, self.device, held=self.fleet.held)
        self.logs = ShardLogs(self.shards)
        self._known = [(0, 0)] * count
        """Transitions and frames that each shard was known to have taken."""
        self._inserted = 0
        self._weights: Any = None
        self._published = -1
        self._idle, self._refusals = Idleness(), Refusals()
        self._looked_s = 0.0
        if leader is not None:
            leader.meet(self.shards)
            leader.hand_over(self.agent, self.clock.steps)

    def check_room(self) -> None:
        """On several machines every shard looks where it lies."""
        if sum(node["Alive"] for node in ray.nodes()) == 1:
            super().check_room()

    @property
    def data_bytes(self) -> int:
        return build.replay_bytes(self.config, self.shapes)

    @property
    def shard_capacity(self) -> int:
        return self.config.replay.capacity // len(self.shards)

    @property
    def inserted(self) -> int:
        """At the last `state`."""
        return self._inserted

    @in_a_line()
    def log(self, folder: Path, scribe: Scribe) -> Log:  # noqa: ARG002
        with seen_by_all(folder.absolute()) as sign:
            answers_of([shard.keep_log.remote(folder.absolute(), sign=sign) for shard in self.shards])
        return self.logs

    @in_a_line()
    def advance(self) -> Advance:
        """A step of the backlog with its update, or a look at the actors that waits for them."""
        episodes, news = list[dict[str, Any]](), list[str]()
        if not self.backlog.steps or monotonic() - self._looked_s > LOOK_EVERY_S:
            self._ask()
            episodes, news = self._received(wait_s=0.0 if self.backlog.steps else PATIENCE_S)
            self._looked_s = monotonic()
        if not self.backlog.steps:
            return Advance(None, episodes, [*news, *self._idle.news(self.fleet)])
        self._idle.over()
        self.clock.steps += 1
        self.clock.frames += self.backlog.take()
        return Advance(self.learn(self.batches.next()) if self.update_is_due else None, episodes, news)

    def learn(self, batch: Batch) -> dict[str, Tensor] | None:
        if self._leader is not None:
            self._leader.lead(self.clock.steps, self.fleet.held)
        return super().learn(batch)

    @in_a_line()
    def state(self) -> dict[str, Any]:
        shards = self.logs.mark()
        for index, state in enumerate(shards):  # also what is taken and not answered yet
            self._learn_of(index, state["ledger"]["transitions"], state["ledger"]["frames"])
        self._inserted = sum(state["replay"]["inserted"] for state in shards)
        return {"env": None, **{name: owner.state() for name, owner in self._owners().items()}, "shards": shards}

    @in_a_line()
    def load_state(self, state: dict[str, Any], fill_replay: Callable[[], None]) -> None:
        for name, owner in self._owners().items():
            owner.load_state(state[name])
        parts = zip(self.shards, state["shards"], strict=True)
        answers_of([shard.load_state.remote(part) for shard, part in parts])
        self.fleet.held[:] = [min(part["replay"]["inserted"], self.shard_capacity) for part in state["shards"]]
        self._known = [(part["ledger"]["transitions"], part["ledger"]["frames"]) for part in state["shards"]]
        fill_replay()
        if self._leader is not None:
            self._leader.hand_over(self.agent, self.clock.steps)

    def _owners(self) -> dict[str, Any]:
        return {"clock": self.clock, "agent": self.agent, "fleet": self.fleet, "backlog": self.backlog}

    def go_back(self, agent: dict[str, Any]) -> None:
        super().go_back(agent)
        self._published = -1
        if self._leader is not None:
            self._leader.hand_over(self.agent, self.clock.steps)

    def close(self) -> None:
        self.fleet.close()
        for shard in self.shards:
            ray.kill(shard)
        self.env.close()

    def _ask(self) -> None:
        """For more steps: not beyond the end of the run, and not far ahead of the updates."""
        config, clock, backlog = self.config, self.clock, self.backlog
        steps, frames = clock.steps + backlog.steps, clock.frames + backlog.frames
        asked = self.fleet.asked_steps
        to_the_end = ceil((config.schedule.frames - frames) * (steps / frames if frames else 1))
        ahead = AHEAD_CHUNKS * config.scale.actors * config.scale.chunk_steps - backlog.steps
        self.fleet.ask(
            self._current_weights(),
            step=steps + asked,
            most_steps=min(to_the_end, ahead) - asked,
            chunk_steps=max(1, min(config.scale.chunk_steps, to_the_end - asked)),
        )

    def _received(self, *, wait_s: float) -> tuple[list[dict[str, Any]], list[str]]:
        """Episodes that ended, and news."""
        episodes: list[dict[str, Any]] = []
        news: list[str] = []
        for found in self.fleet.tend(wait_s=wait_s):
            if isinstance(found, Lost):
                news.append(f"actor {found.actor} is replaced: {found.reason}")
                continue
            index, receipt = self.fleet.shard_of(found.actor), found.receipt
            self._learn_of(index, receipt.transitions, receipt.frames)
            if receipt.refused:
                news += self._refusals.news(found.actor, receipt.refused)
                if not any(self.fleet.held) and self._refusals.of_all(len(self.fleet.members)):
                    raise EngineError(f"of every actor every chunk is refused, the last one: {receipt.refused}")
                continue
            self.clock.episodes += len(found.collected.episodes)
            episodes += found.collected.episodes
        return episodes, news

    def _learn_of(self, index: int, transitions: int, frames: int) -> None:
        """What a shard has taken in all, from whomever: also an actor that died before it could tell."""
        known = self._known[index]
        if transitions > known[0]:
            self.backlog.put(transitions - known[0], frames - known[1])
            self._known[index] = transitions, frames

    def _current_weights(self) -> Any:
        version = self.clock.updates // self.config.scale.publish_every_updates
        if version != self._published:
            self._weights, self._published = ray.put(weights_of(self.agent)), version
        return self._weights


def _absolute(folder: str | None) -> str | None:
    """For processes that are elsewhere."""
    return None if folder is None else str(Path(folder).absolute())


class Idleness:
    """A learner that has used up its steps says so, once."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._patience_s = FIRST_SAID_AFTER_S
        self._said = False

    def over(self) -> None:
        self._since_s, self._patience_s, self._said = None, SAID_AFTER_S, False

    def news(self, fleet: Fleet) -> list[str]:
        self._since_s = self._since_s or monotonic()
        if self._said or monotonic() - self._since_s < self._patience_s:
            return []
        self._said = True
        sending = sum(member.delivered > 0 for member in fleet.members)
        return [
            f"no steps have come for {self._patience_s:g} s and every update that was due is made: waiting for the "
            f"actors, of which {sending} of {len(fleet.members)} have sent something in their present life"
        ]


class Refusals:
    """Told at the first, tenth, hundredth ... of an actor: somebody who floods must not flood the records."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def of_all(self, actors: int) -> bool:
        """Whether each of so many was refused several times."""
        return len(self._counts) == actors and min(self._counts.values()) >= HOPELESS

    def news(self, actor: int, reason: str) -> list[str]:
        self._counts[actor] += 1
        count = self._counts[actor]
        if count != 10 ** (len(str(count)) - 1):
            return []
        return [f"a chunk of actor {actor} is refused ({count} so far): {reason}"]
