"""A dm_control task as an environment of named views."""

from typing import Any

import numpy as np
from gymnasium import spaces

from manyview.envs.dmc.simulation import load
from manyview.envs.dmc.suite import FOREGROUND
from manyview.envs.gl import prepare_headless_gl
from manyview.envs.suite import Settings, Task
from manyview.envs.views import Image, MultiViewEnv, NotRestorable, Observation, State, View

RESET_ATTEMPTS = 10
BLACK = (0, 0, 0)
FILL = {"dmc/reach_duplo": (255, 255, 255)}
"""The colour where the background was. The arm of Reach Duplo is black itself."""
UNBOUNDED = 1e9  # dm_control's bound of an actuator without one is 1e10


class DeepMindControl(MultiViewEnv):
    """Actions lie in [-1, 1] and are scaled to the task's. A reward is the sum over the repeated action.

    A physics error ends the episode as truncated, with the last good observation and `info["physics_error"]`. A camera
    that cannot be drawn is absent for that step and tried again at the next; `counts` has both.

    A snapshot is the generator before the episode's reset, and the actions since: restoring plays them again without
    drawing, and checks that the physics arrived at exactly the same state. So whatever a task keeps or changes (its
    own variables, its model, contacts) is restored without being known here.
    """

    def __init__(self, task: Task, settings: Settings) -> None:
        prepare_headless_gl()
        self._task, self._settings = task, settings
        self._random = np.random.RandomState()
        self._env = load(task.id.removeprefix("dmc/"), self._random)
        spec = self._env.action_spec()
        bounded = (spec.minimum > -UNBOUNDED) & (spec.maximum < UNBOUNDED)
        self._low, self._high = np.where(bounded, spec.minimum, -1.0), np.where(bounded, spec.maximum, 1.0)
        super().__init__(_views(task, settings), spaces.Box(-1.0, 1.0, spec.shape, np.float32))
        self._renderer: Any = None
        self._pictures: dict[str, Image | None] = {}
        self._random_at_reset: State = {}
        self._actions: list[Any] = []
        self._seeded = self._broken = False
        self.counts = {"physics_errors": 0, **{f"camera_failures/{view.name}": 0 for view in self._cameras}}

    @property
    def _cameras(self) -> list[View]:
        return [view for view in self.views if view.foreground_of is None]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None or not self._seeded:
            self._random.seed(int(self.np_random.integers(2**32)))
            self._seeded = True
        self._begin_episode()
        return self._look({}), {}

    def _begin_episode(self) -> None:
        from dm_control.composer import EpisodeInitializationError
        from dm_control.rl.control import PhysicsError

        if self._task.id == "dmc/reach_duplo":
            self._renderer = None  # its model is compiled anew, and the GL context goes with the old one
        for attempt in range(RESET_ATTEMPTS):
            self._random_at_reset = self._random.get_state(legacy=False)
            try:
                self._env.reset()
                break
            except (PhysicsError, EpisodeInitializationError):
                self.counts["physics_errors"] += 1
                if attempt == RESET_ATTEMPTS - 1:
                    raise
        self._actions, self._broken = [], False

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        from dm_control.rl.control import PhysicsError

        try:
            reward, last, discount = self._play(action)
        except PhysicsError as error:
            self.counts["physics_errors"] += 1
            self._broken = True
            return self.observe(self._pictures), 0.0, False, True, {"physics_error": str(error)}
        info: dict[str, Any] = {}
        return self._look(info), reward, last and discount == 0.0, last and discount != 0.0, info

    def _play(self, action: Any) -> tuple[float, bool, float]:
        """Step the physics without looking: the reward, whether it was the last step, the discount."""
        scaled = self._low + (np.asarray(action, np.float64) + 1.0) * 0.5 * (self._high - self._low)
        reward = 0.0
        for _ in range(self._settings.action_repeat or 1):
            step = self._env.step(scaled)
            reward += step.reward or 0.0
            if step.last():
                break
        self._actions.append(np.array(action, np.float32))
        return reward, step.last(), step.discount

    def _look(self, info: dict[str, Any]) -> Observation:
        if self._renderer is None:
            from manyview.envs.dmc.renderer import Renderer

            self._renderer = Renderer(
                self._env.physics, self.views, quality=self._settings.render_quality or "standard"
            )
        self._pictures, failures = self._renderer.draw()
        for name, error in failures.items():
            self.counts[f"camera_failures/{name}"] += 1
            info.setdefault("camera_failures", {})[name] = repr(error)
        return self.observe(self._pictures)

    def snapshot(self) -> State:
        if not self._random_at_reset:
            raise NotRestorable(f"{self._task.id} has not been reset yet, so there is nothing to restore")
        return {
            "task": self._task.id,
            "action_repeat": self._settings.action_repeat,
            "random_at_reset": self._random_at_reset,
            "actions": np.array(self._actions, np.float32).reshape(-1, *(self.action_space.shape or ())),
            # After a physics error there is no state worth the name, and the next call is a reset.
            "physics": None if self._broken else self._physics_state(),
            "pictures": {name: picture for name, picture in self._pictures.items() if picture is not None},
            "counts": dict(self.counts),
        }

    def restore(self, state: State) -> Observation:
        for name, mine in (("task", self._task.id), ("action_repeat", self._settings.action_repeat)):
            if state[name] != mine:
                raise NotRestorable(f"the snapshot is of {name} {state[name]}, this environment is of {mine}")
        self._random.set_state(state["random_at_reset"])
        self._seeded = True
        self._begin_episode()
        for action in state["actions"]:
            self._play(action)
        if state["physics"] is not None and not np.array_equal(self._physics_state(), state["physics"]):
            raise NotRestorable(
                f"{self._task.id}: the same actions led to another state than when the snapshot was taken; were the "
                "versions of mujoco and dm-control and the kind of processor the same?"
            )
        self.counts = dict(state["counts"])
        self._broken = state["physics"] is None
        self._pictures = {view.name: state["pictures"].get(view.name) for view in self.views}
        return self.observe(self._pictures)

    def _physics_state(self) -> Any:
        """Everything the next step depends on, the solver's warm start included."""
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
        return _view_name(task, asked.removesuffix(FOREGROUND)) + FOREGROUND
    if asked in task.cameras:
        return asked
    if asked.isdecimal() and int(asked) < len(task.cameras):
        return task.cameras[int(asked)]
    numbered = ", ".join(f"{number} {name}" for number, name in enumerate(task.cameras))
    raise ValueError(f"{task.id} has no camera {asked!r}; it has {numbered}")
