"""One Procgen game as an ordinary environment."""

from typing import Any

import numpy as np

from manyview.envs.procgen.pool import ACTIONS, SCREEN, GamePool, PoolState
from manyview.envs.suite import Levels
from manyview.envs.views import MultiViewEnv, NotRestorable, Observation, State

SNAPSHOT_ERROR = "EnvPool can neither give nor take the state of a game; begin an episode anew with reset(seed=...)"


class Procgen(MultiViewEnv):
    """A game in a pool of its own. A seed makes the pool anew and with it the sequence of levels.

    `info` has the `level_seed`, and after a step whether that step made the `level_complete`.
    """

    def __init__(self, task: str, *, levels: Levels = "train") -> None:
        super().__init__([SCREEN], ACTIONS)
        self._pool = GamePool(task, levels=levels, num_envs=1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._unpack_state(self._pool.reset(seed))

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        state = self._pool.step(np.array([action], np.int32))
        observation, info = self._unpack_state(state)
        info["level_complete"] = bool(state.level_complete[0])
        return observation, float(state.rewards[0]), bool(state.terminated[0]), bool(state.truncated[0]), info

    def close(self) -> None:
        self._pool.close()

    def snapshot(self) -> State:
        raise NotRestorable(f"{self._pool.task}: {SNAPSHOT_ERROR}")

    def restore(self, state: State) -> Observation:  # noqa: ARG002
        raise NotRestorable(f"{self._pool.task}: {SNAPSHOT_ERROR}")

    def _unpack_state(self, state: PoolState) -> tuple[Observation, dict[str, Any]]:
        image = state.images[0].transpose(1, 2, 0)
        return self.observe({SCREEN.name: image}), {"level_seed": int(state.level_seeds[0])}
