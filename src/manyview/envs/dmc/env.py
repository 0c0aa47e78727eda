"""A dm_control task as an environment of named views."""

from typing import Any

import numpy as np
from gymnasium import spaces

from manyview.envs.dmc.simulation import load
from manyview.envs.dmc.suite import FOREGROUND
from manyview.envs.gl import prepare_headless_gl
from manyview.envs.simulated import Drawn, Played, SimulatedEnv
from manyview.envs.suite import Settings, Task
from manyview.envs.views import State, View

BLACK = (0, 0, 0)
FILL = {"dmc/reach_duplo": (255, 255, 255)}
"""The colour where the background was. The arm of Reach Duplo is black itself."""
UNBOUNDED = 1e9  # dm_control's bound of an actuator without one is 1e10


class DeepMindControl(SimulatedEnv):
    """Actions lie in [-1, 1] and are scaled to the task's. A reward is the sum over the repeated action."""

    versions = "mujoco and dm-control"

    def __init__(self, task: Task, settings: Settings) -> None:
        prepare_headless_gl()
        self._random = np.random.RandomState()
        self._env = load(task.id.removeprefix("dmc/"), self._random)
        spec = self._env.action_spec()
        bounded = (spec.minimum > -UNBOUNDED) & (spec.maximum < UNBOUNDED)
        self._low, self._high = np.where(bounded, spec.minimum, -1.0), np.where(bounded, spec.maximum, 1.0)
        self._renderer: Any = None
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
        self._random.set_state(state)

    def begin(self) -> None:
        if self._task.id == "dmc/reach_duplo":
            self._renderer = None  # its model is compiled anew, and the GL context goes with the old one
        self._env.reset()

    def play(self, action: Any) -> Played:
        scaled = self._low + (np.asarray(action, np.float64) + 1.0) * 0.5 * (self._high - self._low)
        reward = 0.0
        for _ in range(self._settings.action_repeat or 1):
            step = self._env.step(scaled)
            reward += step.reward or 0.0
            if step.last():
                break
        return Played(reward, step.last() and step.discount == 0.0, step.last() and step.discount != 0.0, {})

    def draw(self) -> Drawn:
        from manyview.envs.dmc.renderer import Renderer

        if self._renderer is None:
            quality = self._settings.render_quality or "standard"
            self._renderer = Renderer(self._env.physics, self.views, quality=quality)
        drawn: Drawn = self._renderer.draw()
        if drawn.failures:  # whatever is wrong with its GL context, the next step gets another
            self._renderer.close()
            self._renderer = None
        return drawn

    def physics_state(self) -> Any:
        import mujoco

        physics, wanted = self._env.physics, mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(physics.model.ptr, wanted))
        mujoco.mj_getState(physics.model.ptr, physics.data.ptr, state, wanted)
        return state

    def close(self) -> None:
        if self._env is not None:
            self._renderer = None
            self._env.close()
            self._env = None


def _views(task: Task, settings: Settings) -> list[View]:
    size = settings.image_size or 0
    names, views = [_view_name(task, asked) for asked in settings.views], []
    for name in names:
        camera = name.removesuffix(FOREGROUND)
        if camera == name:
            views.append(View(name, size, size))
        elif camera in names:
            views.append(View(name, size, size, foreground_of=camera, fill=FILL.get(task.id, BLACK)))
        else:
            raise ValueError(f"{name} is made from the picture of {camera}: add it, views={[camera, *names]}")
    return views


def _view_name(task: Task, asked: str) -> str:
    """A view's name, from the name or number of its camera."""
    if asked.endswith(FOREGROUND):
        return task.camera(asked.removesuffix(FOREGROUND)) + FOREGROUND
    return task.camera(asked)
