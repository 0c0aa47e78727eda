"""Algorithm 2 of the paper, a step of all environments or a minibatch at a time.

1  initialise the encoder F_θ and the discriminator D_φ
2  initialise the policy π, the number of episodes E, β_0, κ and the empty rollout B
3  for every episode ℓ
4      t = 0
5      until it is over
6          get the observation o_t of every view
7          for every view: x_t, y_t = F_θ(o_t)
8          s_t = concatenate(y_t of every view, x̄_t)
9          a_t ~ π(s_t)
10         put o_t, a_t, ř_t, o_{t+1} into B
11     β_ℓ = β_0 (1 - κ)^ℓ
12     get the representations of B
13     for every row: r̂ by Eq. 9, total reward ř + β_ℓ r̂
14     update the policy with the total reward
15     update θ and φ by L_total

PAPER: D32. An "episode" is a rollout of so many steps of all environments: the text samples 256 steps in each. The
representations of line 12 are those of line 7, since nothing has been learned in between; lines 14 and 15 are one
backward pass a minibatch.
"""

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyview.agents import PPO
from manyview.data import Minibatch
from manyview.data.room import check_memory
from manyview.envs.many import episodes_ended, frames_of, restore_all, snapshot_all, together
from manyview.envs.views import NotRestorable, Observation
from manyview.methods import Episodic
from manyview.train import build, checkpoint
from manyview.train.config import RunConfig
from manyview.train.machine import autocast
from manyview.train.observe import many_to_tensors
from manyview.train.seeds import derived_seed, stream
from manyview.train.trainer import Advance, Looked, Metrics, Trainer


class OnPolicyTrainer(Trainer):
    """Environments, rollout and agent of one run.

    A state of it is always that of the last edge between two rollouts: what has been acted since is acted again when a
    run goes on, to the same end where the environments can be restored.
    """

    agent: PPO

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, build.environments)  # lines 1 and 2
        config = self.config
        frames = build.rollout_bytes(config, self.shapes) if self.device.type == "cpu" else 0
        check_memory(
            frames + (self.update_bytes or 0),
            what=f"learning from {config.rollout.envs:,} environments times {config.rollout.steps:,} steps",
            instead="lower rollout.envs or rollout.steps",
        )
        self.rollout = build.rollout(config, self.shapes)
        self._last_batch: Minibatch | None = None
        self._metrics: Metrics = {}
        """Of the rollout and of its last update."""
        self._minibatches: list[Tensor] = []
        """Rows of the rollout that are still to be learned from, in this iteration."""
        self._begin_episodes()
        self._edge = self._now()
        checkpoint.packed(self._edge, {})  # a state of too many environments is refused now and not at the end

    @property
    def data_bytes(self) -> int:
        return self.rollout.frames.nbytes

    @property
    def at_edge(self) -> bool:
        return self.rollout.length == 0

    @property
    def edge_frames(self) -> int:
        frames: int = self._edge["clock"]["frames"]
        return frames

    @property
    def updates_left(self) -> int:
        """Of this rollout."""
        return len(self._minibatches)

    @property
    def record_is_due(self) -> bool:
        """Of each rollout: `advance` gives figures once it has been learned from."""
        return True

    def advance(self) -> Advance:
        if self._minibatches:
            return Advance(self._learn(), [])
        episodes = self._act()
        if self.rollout.full:
            self._appraise()
        return Advance(None, episodes)

    def state(self) -> dict[str, Any]:
        return self._edge

    def load_state(self, state: dict[str, Any], fill_replay: Callable[[], None]) -> None:
        fill_replay()
        self.clock.load_state(state["clock"])
        self.agent.load_state(state["agent"])
        if state["env"] is None:
            self.agent.forget_episodes()
            self._begin_episodes()
        else:
            self._begin_rollout(restore_all(self.env, state["env"]))
        self._edge = self._now()

    def looked_at(self) -> Looked | None:
        batch = self._last_batch
        return None if batch is None else Looked(batch.views, batch.mask, None)

    def close(self) -> None:
        with self.env_calls("close"):
            self.env.close()

    def _now(self) -> dict[str, Any]:
        try:
            env = snapshot_all(self.env)
        except NotRestorable:
            env = None
        return {"env": env, "clock": self.clock.state(), "agent": self.agent.state()}

    def _begin_episodes(self) -> None:
        # Seeds by number: how episodes begin does not depend on what was before.
        seed = derived_seed(self.config.seed, "episodes", self.clock.rollouts)
        with self.env_calls("reset"):
            observation, _ = self.env.reset(seed=seed)
        self.clock.episodes += self.config.rollout.envs
        self._begin_rollout(observation)

    def _begin_rollout(self, observation: Observation) -> None:
        views, mask = many_to_tensors(observation, self.shapes.cameras, self.device)
        self.rollout.begin(views, mask, first_step=self._env_steps)

    def _act(self) -> list[dict[str, Any]]:
        """Lines 6 to 10; the episodes that ended."""
        envs = self.config.rollout.envs
        with autocast(self.config.machine):
            action, log_prob, value, features = self.agent.decide(*self.rollout.seen(), step=self.clock.steps)
        chosen = self.shapes.actions.for_env(action)
        with self.env_calls("step"):
            observation, reward, terminated, truncated, info = self.env.step(chosen)
        views, mask = many_to_tensors(observation, self.shapes.cameras, self.device)
        self.rollout.add(  # line 10
            action,
            log_prob,
            value,
            features if self.agent.pays_what_it_encodes else None,
            reward=self._tensor(np.asarray(reward, np.float32)),
            terminated=self._tensor(terminated),
            truncated=self._tensor(truncated),
            final_value=self._final_values(truncated, info),
            views=views,
            mask=mask,
        )
        episodes = episodes_ended(info)
        self.clock.steps += envs
        self.clock.frames += frames_of(info, envs)
        self.clock.episodes += len(episodes)
        return episodes

    def _appraise(self) -> None:
        """Lines 11 to 13, and the order in which the rollout is learned from."""
        with autocast(self.config.machine):
            _, _, value, features = self.agent.decide(*self.rollout.seen(), step=self.clock.steps)
            self.rollout.close(value, features if self.agent.pays_what_it_encodes else None)
            self._metrics = self.agent.appraise(self.rollout, self.clock.elapsed(self.config.bonus.unit))
        rows = self.config.rollout.envs * self.config.rollout.steps
        parts = ceil(rows / self.config.ppo.batch_size)  # nearly equal ones: a few rows left over would be a full step
        for epoch in range(self.config.ppo.epochs):
            order = stream(self.config.seed, "minibatches", self.clock.rollouts, epoch).permutation(rows)
            self._minibatches += torch.from_numpy(order).to(self.device).tensor_split(parts)

    def _learn(self) -> Metrics | None:
        """Lines 14 and 15 for one minibatch; after the last one the next rollout begins."""
        rows = self._minibatches.pop(0)
        self._last_batch = batch = self.rollout.minibatch(rows, with_next=isinstance(self.agent.intrinsic, Episodic))
        self._metrics |= self.counted(lambda: self.agent.update(batch)) or {}
        if self._minibatches:
            return None
        self._begin_next_rollout()
        return self._metrics

    def go_back(self, agent: dict[str, Any]) -> None:
        """What was acted by the agent that is given up is not learned from any more."""
        super().go_back(agent)
        self._minibatches = []
        if self.at_edge:
            self._edge = self._now()
        else:
            self._begin_next_rollout()

    def _begin_next_rollout(self) -> None:
        self.clock.rollouts += 1
        self.rollout.begin(self.rollout.frames[-1], self.rollout.mask[-1], first_step=self._env_steps)
        self._edge = self._now()

    def _final_values(self, truncated: Any, info: dict[str, Any]) -> Tensor:
        """[E]: of the last states of episodes that only the clock ended."""
        values = torch.zeros(len(truncated), device=self.device)
        places = np.flatnonzero(truncated)
        if len(places):
            last = together([info["final_obs"][place] for place in places])
            views, mask = many_to_tensors(last, self.shapes.cameras, self.device)
            env = self._tensor(places)
            views, mask = self.shapes.derived(views, mask, draw=self.rollout.draw(env), env=env)
            with autocast(self.config.machine):
                values[env] = self.agent.value_of(views, mask)
        return values

    @property
    def _env_steps(self) -> int:
        """That each environment has made."""
        return self.clock.steps // self.config.rollout.envs

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(np.asarray(array)).to(self.device)
