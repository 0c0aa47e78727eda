"""Some of an environment's views, in a chosen order."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from manyview.envs.views import MASK, Observation, State, ViewWrapper, checked_views, observation_space, views_of


class ChooseViews(ViewWrapper):
    """The environment as it looks to somebody who has only these cameras."""

    def __init__(self, env: gym.Env[Observation, Any], names: Sequence[str]) -> None:
        super().__init__(env)
        there = [view.name for view in views_of(env)]
        if missing := [name for name in names if name not in there]:
            raise ValueError(f"{env} has the views {there}, not {missing}")
        self._columns = [there.index(name) for name in names]
        self.views = checked_views([self.views[column] for column in self._columns])
        self.metadata = {**env.metadata, "views": self.views}
        self.observation_space = observation_space(self.views)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._chosen(observation), info

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._chosen(observation), reward, terminated, truncated, info

    def _chosen(self, observation: Observation) -> Observation:
        chosen = {view.name: observation[view.name] for view in self.views}
        return {**chosen, MASK: observation[MASK][self._columns]}

    def restore(self, state: State) -> Observation:
        return self._chosen(super().restore(state))
