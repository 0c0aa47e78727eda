"""A dm_control task as an environment of named views."""

from typing import Any

import numpy as np
from gymnasium import spaces

from manyview.envs.dmc.simulation import load
from manyview.envs.gl import prepare_headless_gl
from manyview.envs.simulated import Played, SimulatedEnv
from manyview.envs.suite import FOREGROUND, Settings, Task
from manyview.envs.views import State, View, check_position

BLACK = (0, 0, 0)
FILL = {"dmc/reach_duplo": (255, 255, 255)}
"""The colour where the background was. The arm of Reach Duplo is black itself."""
UNBOUNDED = 1e9  # dm_control's bound of an actuator without one is 1e10


class DeepMindControl(SimulatedEnv):
    """Actions lie in [-1, 1] and are scaled to the task's. A reward is the sum over the repeated action."""

    versions = "mujoco and dm-control"
    rangefinders = False  # as dm_control draws them

    def __init__(self, task: Task, settings: Settings) -> None:
        prepare_headless_gl()
        self._random = np.random.RandomState()
        self._env = load(task.id.removeprefix("dmc/"), self._random)
        spec = self._env.action_spec()
        bounded = (spec.minimum > -UNBOUNDED) & (spec.maximum < UNBOUNDED)
        self._low, self._high = np.where(bounded, spec.minimum, -1.0), np.where(bounded, spec.maximum, 1.0)
        super().__init__(task, settings, _views(task, settings), spaces.Box(-1.0, 1.0, spec.shape, np.float32))

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        from dm_control.composer import EpisodeInitializationError
        from dm_control.rl.control import PhysicsError

        return (PhysicsError, EpisodeInitializationError)

    def seed_episodes(self) -> None:
        self._random.seed(int(self.np_random.integers(2**32)))

    def random_state(self) -> State:
        state: State = self._random.get_state(legacy=False)
        return state

    def set_random_state(self, state: State) -> None:
        check_position(state["state"]["pos"], 624)
        self._random.set_state(state)

    def begin(self) -> None:
        self._env.reset()

    def play(self, action: Any) -> Played:
        scaled = self._low + (np.asarray(action, np.float64) + 1.0) * 0.5 * (self._high - self._low)
        reward, frames = 0.0, 0
        for _ in range(self._settings.action_repeat or 1):
            step = self._env.step(scaled)
            reward, frames = reward + (step.reward or 0.0), frames + 1
            if step.last():
                break
        last = step.last()
        return Played(reward, last and step.discount == 0.0, last and step.discount != 0.0, frames, {})

    def world(self) -> tuple[Any, Any]:
        physics = self._env.physics
        return physics.model.ptr, physics.data.ptr

    def close(self) -> None:
        super().close()
        if self._env is not None:
            self._env.close()
            self._env = None


def _views(task: Task, settings: Settings) -> list[View]:
    size, views = settings.image_size or 0, []
    for name in settings.views:
        camera = name.removesuffix(FOREGROUND)
        if camera == name:
            views.append(View(name, size, size))
        elif camera in settings.views:
            views.append(View(name, size, size, derived_from=camera, fill=FILL.get(task.id, BLACK)))
        else:
            raise ValueError(f"{name} is made from the picture of {camera}: add it, views={[camera, *settings.views]}")
    return views
