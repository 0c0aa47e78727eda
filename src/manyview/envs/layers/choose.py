"""Some of an environment's views, in a chosen order."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from manyview.envs.views import MASK, Observation, State, ViewWrapper, get_views, make_observation_space, validate_views


class SelectViews(ViewWrapper):
    """The environment as it looks to somebody who has only these cameras."""

    def __init__(self, env: gym.Env[Observation, Any], names: Sequence[str]) -> None:
        super().__init__(env)
        available = [view.name for view in get_views(env)]
        if missing := [name for name in names if name not in available]:
            raise ValueError(f"{env} has the views {available}, not {missing}")
        self._indices = [available.index(name) for name in names]
        self.views = validate_views([self.views[column] for column in self._indices])
        self.metadata = {**env.metadata, "views": self.views}
        self.observation_space = make_observation_space(self.views)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._select(observation), info

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._select(observation), reward, terminated, truncated, info

    def _select(self, observation: Observation) -> Observation:
        selected = {view.name: observation[view.name] for view in self.views}
        return {**selected, MASK: observation[MASK][self._indices]}

    def restore(self, state: State) -> Observation:
        return self._select(super().restore(state))
