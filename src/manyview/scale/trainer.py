"""Algorithm 1 with its lines 4 to 8 in many actors, its replay in shards, and lines 9 to 15 here."""

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from manyview.data import Batch, Log, Scribe
from manyview.scale.backlog import Backlog
from manyview.scale.collector import weights_of
from manyview.scale.engine import Handle, ray
from manyview.scale.fleet import Fleet, Lost
from manyview.scale.logs import ShardLogs
from manyview.scale.shard import Shard
from manyview.train import RunConfig, build
from manyview.train.off_policy import FromReplay
from manyview.train.trainer import Advance

IN_FLIGHT = 2
"""Batches on their way from each shard."""
AHEAD_CHUNKS = 2
"""So many chunks of each actor may be collected before the updates that they are for."""
PATIENCE_S = 0.2
"""How long a learner without work looks at its actors before it looks elsewhere."""
SAID_AFTER_S = 10.0


class ManyActors(FromReplay):
    """The learner of a run, its actors and its shards."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, build.environment)
        config, count = self.config, self.config.scale.replay_shards
        remote = ray.remote(Shard).options(num_cpus=0, max_restarts=0)
        self.shards = [remote.remote(config, self.shapes, index=index, count=count) for index in range(count)]
        self.fleet = Fleet(config, self.shapes, self.shards)
        self.backlog = Backlog()
        self.batches = Batches(self.shards, self.device)
        self.logs = ShardLogs(self.shards)
        self._inserted = 0
        self._weights: Any = None
        self._published = -1
        self._idle = Idleness()

    @property
    def data_bytes(self) -> int:
        return build.replay_bytes(self.config, self.shapes)

    @property
    def inserted(self) -> int:
        return self._inserted

    def log(self, folder: Path, scribe: Scribe) -> Log:  # noqa: ARG002
        ray.get([shard.keep_log.remote(folder) for shard in self.shards])
        return self.logs

    def advance(self) -> Advance:
        """A step of the backlog with its update, or a look at the actors that waits for them."""
        self._ask()
        episodes, news = self._received(wait_s=0.0 if self.backlog.steps else PATIENCE_S)
        if not self.backlog.steps:
            return Advance(None, episodes, [*news, *self._idle.news(self.fleet)])
        self._idle.over()
        self.clock.steps += 1
        self.clock.frames += self.backlog.take()
        return Advance(self.learn(self.batches.next()) if self.update_is_due else None, episodes, news)

    def state(self) -> dict[str, Any]:
        shards = self.logs.mark()
        self._inserted = sum(state["replay"]["inserted"] for state in shards)
        return {"env": None, **{name: owner.state() for name, owner in self._owners().items()}, "shards": shards}

    def load_state(self, state: dict[str, Any], fill_replay: Callable[[], None]) -> None:
        for name, owner in self._owners().items():
            owner.load_state(state[name])
        parts = zip(self.shards, state["shards"], strict=True)
        ray.get([shard.load_state.remote(part) for shard, part in parts])
        self.batches.held = [part["replay"]["inserted"] for part in state["shards"]]
        fill_replay()

    def _owners(self) -> dict[str, Any]:
        return {"clock": self.clock, "agent": self.agent, "fleet": self.fleet, "backlog": self.backlog}

    def close(self) -> None:
        self.fleet.close()
        for shard in self.shards:
            ray.kill(shard)
        self.env.close()

    def _ask(self) -> None:
        """For more steps: not beyond the end of the run, and not far ahead of the updates."""
        config, clock, backlog = self.config, self.clock, self.backlog
        steps, frames = clock.steps + backlog.steps, clock.frames + backlog.frames
        to_the_end = ceil((config.schedule.frames - frames) * (steps / frames if frames else 1))
        ahead = AHEAD_CHUNKS * config.scale.actors * config.scale.chunk_steps - backlog.steps
        self.fleet.ask(
            self._current_weights(),
            step=steps,
            most_steps=min(to_the_end, ahead) - self.fleet.asked_steps,
            chunk_steps=max(1, min(config.scale.chunk_steps, to_the_end - self.fleet.asked_steps)),
        )

    def _received(self, *, wait_s: float) -> tuple[list[dict[str, Any]], list[str]]:
        """Episodes that ended, and news."""
        episodes: list[dict[str, Any]] = []
        news: list[str] = []
        for found in self.fleet.tend(wait_s=wait_s):
            if isinstance(found, Lost):
                news.append(f"actor {found.actor} is replaced: {found.reason}")
            elif found.receipt.refused:
                news.append(f"a chunk of actor {found.actor} is refused: {found.receipt.refused}")
            else:
                self.backlog.put(found.receipt.transitions, found.collected.frames)
                self.batches.held[self.fleet.shard_of(found.actor)] += found.receipt.transitions
                self.clock.episodes += len(found.collected.episodes)
                episodes += found.collected.episodes
        return episodes, news

    def _current_weights(self) -> Any:
        version = self.clock.updates // self.config.scale.publish_every_updates
        if version != self._published:
            self._weights, self._published = ray.put(weights_of(self.agent)), version
        return self._weights


class Batches:
    """Of all shards, as often of each as it has steps; some are always on their way."""

    def __init__(self, shards: Sequence[Handle], device: torch.device) -> None:
        self._shards, self._device = shards, device
        self._coming: deque[Any] = deque()
        self.held = [0] * len(shards)
        """Steps that were put into each."""
        self._due = [0.0] * len(shards)
        self.waited_s = 0.0

    def next(self) -> Batch:
        while len(self._coming) < IN_FLIGHT * len(self._shards):
            self._coming.append(self._shards[self._whose_turn()].sample.remote())
        began_s = monotonic()
        arrays = ray.get(self._coming.popleft())
        self.waited_s += monotonic() - began_s
        with warnings.catch_warnings():
            # Ray's memory is not to be written to, and no update writes to its batch.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return Batch(**{name: torch.from_numpy(array) for name, array in arrays.items()}).to(self._device)

    def _whose_turn(self) -> int:
        total = sum(self.held)
        self._due = [due + held / total for due, held in zip(self._due, self.held, strict=True)]
        chosen = max(range(len(self.held)), key=lambda index: self._due[index])
        self._due[chosen] -= 1
        return chosen


class Idleness:
    """A learner that has used up its steps says so, once."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._said = True  # while the first actors start nobody is surprised

    def over(self) -> None:
        self._since_s, self._said = None, False

    def news(self, fleet: Fleet) -> list[str]:
        self._since_s = self._since_s or monotonic()
        if self._said or monotonic() - self._since_s < SAID_AFTER_S:
            return []
        self._said = True
        return [
            f"no steps have come for {SAID_AFTER_S:g} s and every update that was due is made: waiting for the actors, "
            f"{fleet.alive} of {len(fleet.members)} have a process"
        ]
