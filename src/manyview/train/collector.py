"""Lines 4 to 8 of Algorithm 1: acting in one environment, and keeping what came of it."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from manyview.agents import OffPolicyAgent
from manyview.config.schema import RunConfig
from manyview.data import ReplayBuffer
from manyview.envs.views import NotRestorable, Observation, restore, snapshot
from manyview.train.compute import autocast, resolve_device
from manyview.train.counters import Counters
from manyview.train.factory import Shapes
from manyview.train.preprocessing import to_tensors
from manyview.train.signals import EnvCallTracker
from manyview.utils.seeding import derive_seed, make_rng


class Collector:
    """Plays one episode after another into a replay. It counts on `clock`, which may be somebody else's too."""

    def __init__(
        self,
        config: RunConfig,
        env: gym.Env[Observation, Any],
        shapes: Shapes,
        agent: OffPolicyAgent,
        replay: ReplayBuffer,
        clock: Counters,
        env_calls: EnvCallTracker | None = None,
    ) -> None:
        self.config, self.env, self.shapes, self.agent = config, env, shapes, agent
        self._env_calls = env_calls or EnvCallTracker(config.task)
        self.replay, self.counters, self._device = replay, clock, resolve_device(config.machine)
        self.start_episode()

    def step(self) -> Sequence[dict[str, Any]]:
        """One agent step; return, steps and frames of the episode, if it ended."""
        action = self._select_action()
        with self._env_calls("step"):
            observation, reward, terminated, truncated, info = self.env.step(action)
        self.replay.add(action, float(reward), terminated, observation)  # line 8
        self.observation = observation
        self.counters.steps += 1
        self.counters.frames += info.get("frames", 1)
        if terminated or truncated:
            self.start_episode()
        return [info["episode"]] if "episode" in info else []

    def start_episode(self) -> None:
        # Seeds by number: how an episode begins does not depend on what was before.
        seed = derive_seed(self.config.seed, "episode", self.counters.episodes)
        with self._env_calls("reset"):
            self.observation, _ = self.env.reset(seed=seed)
        self.replay.start_episode(self.observation)
        self.counters.episodes += 1

    def get_state(self) -> dict[str, Any] | None:
        """Of the environment; None if it cannot be restored."""
        try:
            return snapshot(self.env)
        except NotRestorable:
            return None

    def load_state(self, state: dict[str, Any] | None) -> None:
        """Go on in mid-episode, or with a fresh one, on a replay that is as it was then."""
        if state is None:
            self.start_episode()
        else:
            self.observation = restore(self.env, state)

    def _select_action(self) -> NDArray[np.float32]:
        """Lines 4 to 7, or a random action at the begin."""
        step = self.counters.steps
        if step < self.config.schedule.random_steps:
            sample = make_rng(self.config.seed, "random actions", step).uniform(-1, 1, self.shapes.actions.size)
            return sample.astype(np.float32)
        views, mask = to_tensors(self.observation, self.shapes.views, self._device)
        with autocast(self.config.machine):
            action: Tensor = self.agent.act(views, mask, step=step, explore=True)
        array: NDArray[np.float32] = action[0].float().cpu().numpy()
        return array
