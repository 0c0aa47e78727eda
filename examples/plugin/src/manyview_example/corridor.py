"""Suite with one task: a corridor with a reward at its end, seen by two cameras."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from manyview.envs import MultiViewEnv, Suite, Task, TaskSettings, View
from manyview.envs.views import Image, Observation, State
from manyview.envs.wrappers.observation import SelectViews
from manyview.utils.seeding import get_rng_state, restore_rng

CELLS, SIZE, EPISODE_STEPS = 10, 20, 30
CAMERAS = ("above", "front")


class Corridor(MultiViewEnv):
    """Walk right to the last cell. `above` shows the position, `front` is filled the more, the nearer the end."""

    def __init__(self) -> None:
        views = [View(name, SIZE, SIZE, channels=1, fill=(0,)) for name in CAMERAS]
        super().__init__(views, spaces.Box(-1.0, 1.0, (1,), np.float32))
        self._cell = self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._cell, self._steps = int(self.np_random.integers(CELLS // 2)), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._cell = int(np.clip(self._cell + (1 if action[0] > 0 else -1), 0, CELLS - 1))
        self._steps += 1
        reached = self._cell == CELLS - 1
        return self._observe(), float(reached), reached, not reached and self._steps >= EPISODE_STEPS, {}

    def _observe(self) -> Observation:
        above: Image = np.zeros((SIZE, SIZE, 1), np.uint8)
        above[:, self._cell * SIZE // CELLS : (self._cell + 1) * SIZE // CELLS] = 255
        front: Image = np.zeros((SIZE, SIZE, 1), np.uint8)
        front[SIZE - 2 * self._cell - 1 :] = 255
        return self.observe({"above": above, "front": front})

    # Without these two methods a resumed run starts a new episode instead of continuing bit for bit.
    def snapshot(self) -> State:
        return {"cell": self._cell, "steps": self._steps, "rng": get_rng_state(self.np_random)}

    def restore(self, state: State) -> Observation:
        self._cell, self._steps, self.np_random = state["cell"], state["steps"], restore_rng(state["rng"])
        return self._observe()


def _make_env(task: Task, settings: TaskSettings) -> gym.Env[Observation, Any]:  # noqa: ARG001
    return SelectViews(Corridor(), settings.views)


TASK = Task(id="example/corridor", cameras=CAMERAS, settings=TaskSettings(views=CAMERAS))
SUITE = Suite(name="example", title="Example tasks of a package", tasks={TASK.id: TASK}, make=_make_env)
