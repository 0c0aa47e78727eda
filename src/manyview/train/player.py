"""Lines 4 to 8 of Algorithm 1: acting in one environment, and keeping what came of it."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from manyview.agents import OffPolicyAgent
from manyview.data import Replay
from manyview.envs.views import NotRestorable, Observation, restore, snapshot
from manyview.train.build import Shapes
from manyview.train.clock import Clock
from manyview.train.config import RunConfig
from manyview.train.machine import autocast, device_of
from manyview.train.observe import to_tensors
from manyview.train.seeds import derived_seed, stream
from manyview.train.stopping import EnvCalls


class Player:
    """Plays one episode after another into a replay. It counts on `clock`, which may be somebody else's too."""

    def __init__(
        self,
        config: RunConfig,
        env: gym.Env[Observation, Any],
        shapes: Shapes,
        agent: OffPolicyAgent,
        replay: Replay,
        clock: Clock,
        env_calls: EnvCalls | None = None,
    ) -> None:
        self.config, self.env, self.shapes, self.agent = config, env, shapes, agent
        self._env_calls = env_calls or EnvCalls(config.task)
        self.replay, self.clock, self._device = replay, clock, device_of(config.machine)
        self.begin_episode()

    def step(self) -> Sequence[dict[str, Any]]:
        """One agent step; return, steps and frames of the episode, if it ended."""
        action = self._action()
        with self._env_calls("step"):
            observation, reward, terminated, truncated, info = self.env.step(action)
        self.replay.add(action, float(reward), terminated, observation)  # line 8
        self.observation = observation
        self.clock.steps += 1
        self.clock.frames += info.get("frames", 1)
        if terminated or truncated:
            self.begin_episode()
        return [info["episode"]] if "episode" in info else []

    def begin_episode(self) -> None:
        # Seeds by number: how an episode begins does not depend on what was before.
        seed = derived_seed(self.config.seed, "episode", self.clock.episodes)
        with self._env_calls("reset"):
            self.observation, _ = self.env.reset(seed=seed)
        self.replay.begin(self.observation)
        self.clock.episodes += 1

    def state(self) -> dict[str, Any] | None:
        """Of the environment; None if it cannot be restored."""
        try:
            return snapshot(self.env)
        except NotRestorable:
            return None

    def load_state(self, state: dict[str, Any] | None) -> None:
        """Go on in mid-episode, or with a fresh one, on a replay that is as it was then."""
        if state is None:
            self.begin_episode()
        else:
            self.observation = restore(self.env, state)

    def _action(self) -> NDArray[np.float32]:
        """Lines 4 to 7, or a random action at the begin."""
        step = self.clock.steps
        if step < self.config.schedule.random_steps:
            drawn = stream(self.config.seed, "random actions", step).uniform(-1, 1, self.shapes.actions.count)
            return drawn.astype(np.float32)
        views, mask = to_tensors(self.observation, self.shapes.views, self._device)
        with autocast(self.config.machine):
            action: Tensor = self.agent.act(views, mask, step=step, explore=True)
        chosen: NDArray[np.float32] = action[0].float().cpu().numpy()
        return chosen
