"""Algorithm 1 of the paper, an agent step at a time.

1  initialise the encoder F_θ and the discriminator D_φ
2  initialise the policy π, t_max, β_0, κ and the empty replay B
3  for t = 1 ... t_max
4      get the observation o_t of every view
5      for every view: x_t, y_t = F_θ(o_t)
6      s_t = concatenate(y_t of every view, x̄_t)
7      a_t ~ π(s_t)
8      put o_t, a_t, ř_t, o_{t+1} into B
9      sample a batch of B
10     get the representations of its rows
11     for every row: r̂ by Eq. 9
12                    β_t = β_0 (1 - κ)^t
13                    total reward ř + β_t r̂
14     update the policy with the total reward
15     update θ and φ by L_total
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from manyview.agents import OffPolicyAgent
from manyview.data import Batch, Scribe, SegmentLog
from manyview.data.room import check_room
from manyview.train import build
from manyview.train.config import RunConfig
from manyview.train.player import Player
from manyview.train.trainer import Advance, Looked, Trainer


class FromReplay(Trainer):
    """Lines 9 to 15, wherever batches come from."""

    agent: OffPolicyAgent
    last_batch: Batch | None = None

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, build.environment)  # lines 1 and 2
        self.check_room()

    def check_room(self) -> None:
        """NoRoomError if the replay and an update do not fit."""
        check_room(
            build.replay_bytes(self.config, self.shapes),
            capacity=self.config.replay.capacity,
            folder=build.replay_folder(self.config),
            memory_bytes=self.update_bytes or 0,
        )

    @property
    def record_is_due(self) -> bool:
        every_updates = max(1, self.config.log.every_steps // self.config.schedule.update_every_steps)
        return self.clock.updates % every_updates == 0

    def looked_at(self) -> Looked | None:
        batch = self.last_batch
        return None if batch is None else Looked(batch.views, batch.mask, batch.rows)

    @property
    def update_is_due(self) -> bool:
        """After a step."""
        schedule = self.config.schedule
        return self.clock.frames >= schedule.seed_frames and self.clock.steps % schedule.update_every_steps == 0

    def learn(self, batch: Batch) -> dict[str, Tensor] | None:
        """Lines 10 to 15."""
        self.last_batch = batch
        return self.counted(lambda: self.agent.update(batch, self.clock.steps))


class OffPolicyTrainer(FromReplay):
    """Environment, replay, sampler and agent of one run. All that changes is in them and in `clock`."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        config = self.config
        self.replay = build.replay(config, self.shapes)
        self.sampler = build.sampler(config, self.replay)
        self.player = Player(config, self.env, self.shapes, self.agent, self.replay, self.clock, self.env_calls)

    @property
    def data_bytes(self) -> int:
        return self.replay.nbytes

    @property
    def inserted(self) -> int:
        return self.replay.inserted

    def log(self, folder: Path, scribe: Scribe) -> SegmentLog:
        return SegmentLog(folder, self.replay, scribe)

    def advance(self) -> Advance:
        """Lines 4 to 15."""
        ended = self.player.step()
        return Advance(self.update() if self.update_is_due else None, ended)

    def state(self) -> dict[str, Any]:
        """All that the rest of the run depends on, but for the steps of the replay that are final: a log has those."""
        return {"env": self.player.state(), **{name: owner.state() for name, owner in self._owners().items()}}

    def load_state(self, state: dict[str, Any], fill_replay: Callable[[], None]) -> None:
        """Go on from a state. `fill_replay` puts back the steps that are final."""
        for name, owner in self._owners().items():
            owner.load_state(state[name])
        fill_replay()
        self.player.load_state(state["env"])

    def _owners(self) -> dict[str, Any]:
        """Whoever has a state. The environment has one too, if it can be restored."""
        return {"clock": self.clock, "agent": self.agent, "replay": self.replay, "sampler": self.sampler}

    def close(self) -> None:
        self.sampler.close()
        with self.env_calls("close"):
            self.env.close()

    def update(self) -> dict[str, Tensor] | None:
        """Lines 9 to 15."""
        return self.learn(self.sampler.next())
