"""Algorithm 2 of the paper, one step of all environments or one minibatch per call of `advance`.

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

PAPER: D32. An "episode" is a rollout of a fixed number of steps of all environments: the text samples 256 steps in
each. Line 12 reuses the representations of line 7, since no update happens in between; lines 14 and 15 are one
backward pass per minibatch.
"""

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyview.agents import OnPolicyAgent
from manyview.config.schema import RunConfig
from manyview.data import Minibatch
from manyview.envs.vector import count_frames, extract_finished_episodes, restore_all, snapshot_all, stack_observations
from manyview.envs.views import NotRestorable, Observation
from manyview.training import checkpoint, factory
from manyview.training.compute import autocast, resolve_device
from manyview.training.preprocessing import to_batched_tensors, to_vectors
from manyview.training.trainer import AdvanceResult, Metrics, Trainer
from manyview.utils.resources import check_memory
from manyview.utils.seeding import derive_seed, make_rng


def check_rollout_fits(config: RunConfig, rollout_bytes: int, update_bytes: int) -> None:
    """Raise `InsufficientSpaceError` unless a rollout and an update fit into memory; accelerators are not counted."""
    frames = rollout_bytes if resolve_device(config.compute).type == "cpu" else 0
    check_memory(
        frames + update_bytes,
        what=f"a rollout of {config.rollout.envs:,} environments times {config.rollout.steps:,} steps",
        remedy="lower rollout.envs or rollout.steps",
    )


class OnPolicyTrainer(Trainer):
    """Environments, rollout buffer and agent of one run.

    `get_state` returns the state between the last two rollouts. A resumed run repeats the steps since then, with the
    same result if the environments can be restored.
    """

    agent: OnPolicyAgent

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, factory.make_vector_env)  # lines 1 and 2
        config = self.config
        check_rollout_fits(config, factory.compute_rollout_bytes(config, self.shapes), self.update_bytes or 0)
        self.rollout = factory.build_rollout_buffer(config, self.shapes)
        self._last_batch: Minibatch | None = None
        self._metrics: Metrics = {}
        """Metrics of the rollout and of its last update."""
        self._minibatches: list[Tensor] = []
        """Row indices of the remaining minibatches of this rollout."""
        self._updates_stats_first = True
        """True if this rollout is the first in the statistics of state vectors: it is added before its updates."""
        self._start_episodes()
        self._checkpoint_state = self._capture_state()
        # Fail now, not at the first save, if the state of so many environments is too large.
        checkpoint.serialize_checkpoint(self._checkpoint_state, {})

    @property
    def data_bytes(self) -> int:
        return self.rollout.frames.nbytes

    @property
    def can_checkpoint(self) -> bool:
        return self.rollout.length == 0

    @property
    def checkpoint_frames(self) -> int:
        frames: int = self._checkpoint_state["counters"]["frames"]
        return frames

    @property
    def num_pending_updates(self) -> int:
        """Number of updates left on this rollout."""
        return len(self._minibatches)

    @property
    def should_log(self) -> bool:
        """Always true: `advance` returns metrics only after the last update of a rollout."""
        return True

    def advance(self) -> AdvanceResult:
        """Step all environments once, or train on one minibatch if the rollout is complete."""
        if self._minibatches:
            return AdvanceResult(self._update_minibatch(), [])
        episodes = self._act()
        if self.rollout.is_full:
            self._compute_advantages()
        return AdvanceResult(None, episodes)

    def get_state(self) -> dict[str, Any]:
        """Return the state between the last two rollouts."""
        return self._checkpoint_state

    def load_state(self, state: dict[str, Any], fill_replay: Callable[[], None]) -> None:
        fill_replay()
        self.counters.load_state(state["counters"])
        self.agent.load_state(state["agent"])
        if state["env"] is None:
            self.agent.reset_episodes()
            self._start_episodes()
        else:
            self._start_rollout(restore_all(self.env, state["env"]))
        self._checkpoint_state = self._capture_state()

    def load_agent(self, state: dict[str, Any]) -> None:
        super().load_agent(state)
        self._checkpoint_state = self._capture_state()

    def get_last_batch(self) -> Minibatch | None:
        return self._last_batch

    def close(self) -> None:
        with self.env_calls("close"):
            self.env.close()

    def _capture_state(self) -> dict[str, Any]:
        try:
            env = snapshot_all(self.env)
        except NotRestorable:
            env = None
        return {"env": env, "counters": self.counters.get_state(), "agent": self.agent.get_state()}

    def _start_episodes(self) -> None:
        # Seeds by number: an episode's start does not depend on the rollouts before.
        seed = derive_seed(self.config.seed, "episodes", self.counters.rollouts)
        with self.env_calls("reset"):
            observation, _ = self.env.reset(seed=seed)
        self.counters.episodes += self.config.rollout.envs
        self._start_rollout(observation)

    def _start_rollout(self, observation: Observation) -> None:
        views, mask = to_batched_tensors(observation, self.shapes.cameras, self.device)
        vectors = to_vectors(observation, self.shapes, self.device)
        self.rollout.reset(views, mask, vectors, first_step=self._steps_per_env)

    def _act(self) -> list[dict[str, Any]]:
        """Run lines 6 to 10; return the episodes that ended."""
        envs = self.config.rollout.envs
        with autocast(self.config.compute):
            action, log_prob, value, features = self.agent.act_and_value(
                *self.rollout.get_observation(), step=self.counters.steps
            )
        env_action = self.shapes.actions.to_env(action)
        with self.env_calls("step"):
            observation, reward, terminated, truncated, info = self.env.step(env_action)
        views, mask = to_batched_tensors(observation, self.shapes.cameras, self.device)
        self.rollout.add(  # line 10
            action,
            log_prob,
            value,
            features if self.agent.stores_features else None,
            reward=self._to_tensor(np.asarray(reward, np.float32)),
            terminated=self._to_tensor(terminated),
            truncated=self._to_tensor(truncated),
            final_value=self._compute_final_values(truncated, info),
            views=views,
            mask=mask,
            vectors=to_vectors(observation, self.shapes, self.device),
        )
        episodes = extract_finished_episodes(info)
        self.counters.steps += envs
        self.counters.frames += count_frames(info, envs)
        self.counters.episodes += len(episodes)
        return episodes

    def _compute_advantages(self) -> None:
        """Run lines 11 to 13 and shuffle the rollout into minibatches."""
        with autocast(self.config.compute):
            _, _, value, features = self.agent.act_and_value(*self.rollout.get_observation(), step=self.counters.steps)
            self.rollout.finish(value, features if self.agent.stores_features else None)
            self._metrics = self.agent.compute_advantages(self.rollout, self.counters.count(self.config.beta_unit))
        self._updates_stats_first = not self.agent.has_vector_stats
        if self._updates_stats_first:
            self._update_vector_stats()
        rows = self.config.rollout.envs * self.config.rollout.steps
        # Nearly equal minibatches: a small remainder would get a full optimizer step.
        parts = ceil(rows / self.config.agent.batch_size)
        for epoch in range(self.config.agent.epochs):
            order = make_rng(self.config.seed, "minibatches", self.counters.rollouts, epoch).permutation(rows)
            self._minibatches += torch.from_numpy(order).to(self.device).tensor_split(parts)

    def _update_minibatch(self) -> Metrics | None:
        """Run lines 14 and 15 for one minibatch; after the last one start the next rollout."""
        rows = self._minibatches.pop(0)
        bonus = self.agent.bonus
        self._last_batch = batch = self.rollout.get_minibatch(
            rows, with_next=bonus is not None and bonus.uses_next_views
        )
        self._metrics |= self.run_update(lambda: self.agent.update(batch)) or {}
        if self._minibatches:
            return None
        if not self._updates_stats_first:
            self._update_vector_stats()
        self._start_next_rollout()
        return self._metrics

    def _update_vector_stats(self) -> None:
        """Add the rollout to the statistics of state vectors: the first before its updates, others after theirs.

        So the policy that collected a rollout and its updates normalize alike. The first policy, which saw vectors
        without statistics, is nearly uniform whatever it sees.
        """
        if self.rollout.vectors is not None:
            self.agent.update_vector_stats(self.rollout.vectors[:-1])

    def rollback(self, agent: dict[str, Any]) -> None:
        """Roll the agent back and discard the rollout that the diverged agent collected."""
        super().rollback(agent)
        self._minibatches = []
        if self.can_checkpoint:
            self._checkpoint_state = self._capture_state()
        else:
            self._start_next_rollout()

    def _start_next_rollout(self) -> None:
        self.counters.rollouts += 1
        self.rollout.restart(first_step=self._steps_per_env)
        self._checkpoint_state = self._capture_state()

    def _compute_final_values(self, truncated: Any, info: dict[str, Any]) -> Tensor:
        """Return the values [E] of the last states of truncated episodes, 0 elsewhere."""
        values = torch.zeros(len(truncated), device=self.device)
        indices = np.flatnonzero(truncated)
        if len(indices):
            last = stack_observations([info["final_obs"][index] for index in indices])
            views, mask = to_batched_tensors(last, self.shapes.cameras, self.device)
            env = self._to_tensor(indices)
            views, mask = self.rollout.derived_views(views, mask, draw_ids=self.rollout.get_draw_ids(env), env_ids=env)
            vectors = to_vectors(last, self.shapes, self.device)
            with autocast(self.config.compute):
                values[env] = self.agent.predict_values(views, mask, *(() if vectors is None else (vectors,)))
        return values

    @property
    def _steps_per_env(self) -> int:
        """Number of steps of each environment so far."""
        return self.counters.steps // self.config.rollout.envs

    def _to_tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(np.asarray(array)).to(self.device)
