"""Lines 4 to 8 of Algorithm 1: act in one environment and store the transitions."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyview.agents import OffPolicyAgent
from manyview.config.schema import RunConfig
from manyview.data import ReplayBuffer
from manyview.envs.views import NotRestorable, Observation, restore, snapshot
from manyview.training.compute import autocast, resolve_device
from manyview.training.counters import Counters
from manyview.training.factory import Shapes
from manyview.training.signals import EnvCallTracker
from manyview.utils.seeding import derive_seed, make_rng


class Collector:
    """Play episodes into a replay buffer, which also stacks the frames that the policy sees.

    Args:
        config: Settings of the run.
        env: Environment with single frames; see `factory.make_training_env`.
        shapes: Views and actions of the agent.
        agent: Selects the actions.
        replay: Stores every transition.
        counters: Counters of steps, frames and episodes, shared with the trainer.
        env_calls: Marks calls of the environment for the watchdog.

    """

    def __init__(
        self,
        config: RunConfig,
        env: gym.Env[Observation, Any],
        shapes: Shapes,
        agent: OffPolicyAgent,
        replay: ReplayBuffer,
        counters: Counters,
        env_calls: EnvCallTracker | None = None,
    ) -> None:
        self.config, self.env, self.shapes, self.agent = config, env, shapes, agent
        self._env_calls = env_calls or EnvCallTracker(config.task)
        self.replay, self.counters, self._device = replay, counters, resolve_device(config.compute)
        if replay.features is not None and replay.feature_fn is None:
            replay.feature_fn = self._compute_features
        self.start_episode()

    def step(self) -> Sequence[dict[str, Any]]:
        """Take one agent step; return the episode's return, steps and frames if it ended."""
        action = self._select_action()
        with self._env_calls("step"):
            observation, reward, terminated, truncated, info = self.env.step(action)
        self.replay.add(action, float(reward), terminated, observation, repeated=info.get("blind", False))  # line 8
        self.counters.steps += 1
        self.counters.frames += info.get("frames", 1)
        if terminated or truncated:
            self.start_episode()
        return [info["episode"]] if "episode" in info else []

    def start_episode(self) -> None:
        """Reset the environment and start an episode in the replay buffer."""
        # Seeds by number: an episode's start does not depend on the episodes before.
        seed = derive_seed(self.config.seed, "episode", self.counters.episodes)
        with self._env_calls("reset"):
            observation, _ = self.env.reset(seed=seed)
        self.replay.start_episode(observation)
        self.agent.memory.reset()
        self.counters.episodes += 1

    def get_state(self) -> dict[str, Any] | None:
        """Return the environment's state, or None if it cannot be restored."""
        try:
            return snapshot(self.env)
        except NotRestorable:
            return None

    def load_state(self, state: dict[str, Any] | None) -> None:
        """Continue in mid-episode, or with a fresh one, on a replay buffer in the state of that moment."""
        if state is None:
            self.start_episode()
        else:
            restore(self.env, state)

    def _compute_features(self, views: NDArray[np.uint8], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the features that the bonus keeps beside a step."""
        with autocast(self.config.compute):
            features = self.agent.compute_stored_features(
                *(torch.from_numpy(part).to(self._device) for part in (views, mask))
            )
        array: NDArray[np.float32] = features.float().cpu().numpy()
        return array

    def _select_action(self) -> NDArray[np.float32]:
        """Run lines 4 to 7, or return an initial uniform random action."""
        step = self.counters.steps
        if step < self.config.schedule.random_steps:
            sample = make_rng(self.config.seed, "random actions", step).uniform(-1, 1, self.shapes.actions.size)
            return sample.astype(np.float32)
        observation = (torch.from_numpy(part).to(self._device) for part in self.replay.get_observation())
        with autocast(self.config.compute):
            action: Tensor = self.agent.act(*observation, step=step, explore=True)
        array: NDArray[np.float32] = action[0].float().cpu().numpy()
        return array
