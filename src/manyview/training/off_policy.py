"""Algorithm 1 of the paper, one agent step per call of `advance`.

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
from manyview.config.schema import RunConfig
from manyview.data import AsyncWriter, Batch, SegmentLog
from manyview.data.layout import check_replay_fits
from manyview.data.neighbors import make_feature_rows
from manyview.training import factory
from manyview.training.collector import Collector
from manyview.training.demonstrations import build_batch_sampler, build_demonstrations
from manyview.training.trainer import AdvanceResult, Trainer


class ReplayTrainer(Trainer):
    """Lines 9 to 15, for any source of batches."""

    agent: OffPolicyAgent
    last_batch: Batch | None = None

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, factory.make_training_env)  # lines 1 and 2
        self.check_memory()

    def check_memory(self) -> None:
        """Raise `InsufficientSpaceError` unless the replay buffer and an update fit into memory and disk."""
        check_replay_fits(
            factory.compute_replay_bytes(self.config, self.shapes, self.agent.bonus),
            capacity=self.config.replay.capacity,
            directory=factory.get_replay_directory(self.config),
            other_memory_bytes=self.update_bytes or 0,
        )

    @property
    def should_log(self) -> bool:
        return self.counters.updates % self.log_every_updates == 0

    @property
    def log_every_updates(self) -> int:
        """Updates between two logged ones."""
        return max(1, self.config.logging.every_steps // self.config.schedule.update_every_steps)

    def get_last_batch(self) -> Batch | None:
        return self.last_batch

    @property
    def should_update(self) -> bool:
        """True if an update is due after the current agent step, and the steps fill a window of the sampler."""
        config, counters = self.config, self.counters
        num_steps = config.replay.n_step if config.sequence_length is None else config.sequence_length - 1
        if counters.frames < config.schedule.seed_frames or counters.steps < num_steps:
            return False
        return counters.steps % config.schedule.update_every_steps == 0

    def train_on_batch(self, batch: Batch) -> dict[str, Tensor] | None:
        """Run lines 10 to 15; return the metrics, or None if the update was skipped."""
        self.last_batch = batch
        if (meter := self.agent.drift_meter) is not None:
            # The next logged update compares the encoders over the bank's age, or since the last logged update.
            age = min(meter.compute_age(len(batch.mask)), self.log_every_updates)
            if (self.counters.updates + age) % self.log_every_updates == 0:
                meter.store_encoder()
        return self.run_update(lambda: self.agent.update(batch, self.counters.steps))


class OffPolicyTrainer(ReplayTrainer):
    """Environment, replay buffer, sampler and agent of one run; with `counters` they hold its whole state."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        config = self.config
        self.replay = factory.build_replay_buffer(config, self.shapes, self.agent.bonus)
        self.demonstrations = build_demonstrations(config, self.shapes, self.agent.bonus)
        self.sampler = build_batch_sampler(config, self.replay, self.agent.bonus, self.demonstrations)
        self.collector = Collector(
            config, self.env, self.shapes, self.agent, self.replay, self.counters, self.env_calls
        )

    @property
    def data_bytes(self) -> int:
        return self.replay.nbytes + (self.demonstrations.replay.nbytes if self.demonstrations else 0)

    @property
    def demonstrations_sha256(self) -> str | None:
        return self.demonstrations.manifest.sha256 if self.demonstrations else None

    @property
    def num_inserted(self) -> int:
        return self.replay.inserted

    def search_neighbors(self, features: Tensor, mask: Tensor) -> Tensor | None:
        search = self.agent.neighbor_search
        if search is None:
            return None
        rows = make_feature_rows(*(part.cpu().numpy() for part in (features.float(), mask)))
        return search.search(self.replay, rows, horizon=self.replay.inserted).to(self.device)

    def open_log(self, directory: Path, writer: AsyncWriter) -> SegmentLog:
        return SegmentLog(directory, self.replay, writer)

    def advance(self) -> AdvanceResult:
        """Run lines 4 to 15: one agent step, and an update if it is due."""
        episodes = self.collector.step()
        return AdvanceResult(self.update() if self.should_update else None, episodes)

    def load_agent(self, state: dict[str, Any]) -> None:
        super().load_agent(state)
        self.replay.recompute_newest_features()  # the first observation was stored before

    def get_state(self) -> dict[str, Any]:
        """Return the state of the run without the final steps of the replay buffer, which the segment log holds."""
        return {
            "env": self.collector.get_state(),
            **{name: owner.get_state() for name, owner in self._list_stateful().items()},
        }

    def load_state(self, state: dict[str, Any], fill_replay: Callable[[], None]) -> None:
        """Restore a state; `fill_replay` loads the final steps of the replay buffer."""
        for name, owner in self._list_stateful().items():
            owner.load_state(state[name])
        fill_replay()
        self.collector.load_state(state["env"])

    def _list_stateful(self) -> dict[str, Any]:
        """Return the parts with a state, except the environment, which may not be restorable."""
        return {"counters": self.counters, "agent": self.agent, "replay": self.replay, "sampler": self.sampler}

    def close(self) -> None:
        self.sampler.close()
        with self.env_calls("close"):
            self.env.close()

    def update(self) -> dict[str, Tensor] | None:
        """Run lines 9 to 15; return the metrics, or None if the update was skipped."""
        return self.train_on_batch(self.sampler.sample())
