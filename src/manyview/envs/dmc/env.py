"""DeepMind Control environment with named views, and loading of its tasks."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces

from manyview.envs.dmc.tasks import CAMERAS, DUPLO_OBSERVABLES, split_task_name
from manyview.envs.rendering.gl import configure_headless_gl
from manyview.envs.simulated import SimulatedEnv, StepResult, flatten_vector
from manyview.envs.suite import FOREGROUND_SUFFIX, Task, TaskSettings
from manyview.envs.views import State, View
from manyview.utils.seeding import check_rng_position

DEFAULT_FILL = (0, 0, 0)
"""Color that replaces the background in a foreground view."""
FILL_BY_TASK = {"dmc/reach_duplo": (255, 255, 255)}
"""Fill colors other than the default; the arm of Reach Duplo is black."""
UNBOUNDED_ACTION = 1e9
"""Bounds beyond this value mean an unbounded actuator, for which dm_control declares 1e10."""
MODEL_SEED = 0
"""Seed for loading a task: LQR draws its model then, and every environment must have the same."""


class DeepMindControl(SimulatedEnv):
    """A dm_control task with named views.

    Actions in [-1, 1] are scaled to the task's bounds. The reward is the sum over the action repeat.
    """

    versioned_packages = "mujoco and dm-control"
    rangefinders = False  # as in dm_control's rendering

    def __init__(self, task: Task, settings: TaskSettings) -> None:
        configure_headless_gl()
        self._random_state = np.random.RandomState()
        self._env = load_dmc_env(task.id.removeprefix("dmc/"), self._random_state)
        spec = self._env.action_spec()
        bounded = (spec.minimum > -UNBOUNDED_ACTION) & (spec.maximum < UNBOUNDED_ACTION)
        self._low, self._high = np.where(bounded, spec.minimum, -1.0), np.where(bounded, spec.maximum, 1.0)
        sizes = (
            {name: flatten_vector(part).size for name, part in self.read_vectors().items()} if settings.state else {}
        )
        action_space = spaces.Box(-1.0, 1.0, spec.shape, np.float32)
        super().__init__(task, settings, _build_views(task, settings), action_space, state_sizes=sizes)

    @property
    def physics_error_types(self) -> tuple[type[Exception], ...]:
        from dm_control.composer import EpisodeInitializationError
        from dm_control.rl.control import PhysicsError

        return (PhysicsError, EpisodeInitializationError)

    def seed_episodes(self) -> None:
        self._random_state.seed(int(self.np_random.integers(2**32)))

    def get_rng_state(self) -> State:
        state: State = self._random_state.get_state(legacy=False)
        return state

    def set_rng_state(self, state: State) -> None:
        check_rng_position(state["state"]["pos"], 624)
        self._random_state.set_state(state)

    def reset_simulation(self) -> None:
        self._env.reset()

    def step_simulation(self, action: Any) -> StepResult:
        scaled = self._low + (np.asarray(action, np.float64) + 1.0) * 0.5 * (self._high - self._low)
        reward, frames = 0.0, 0
        for _ in range(self._settings.action_repeat or 1):
            step = self._env.step(scaled)
            reward, frames = reward + (step.reward or 0.0), frames + 1
            if step.last():
                break
        last = step.last()
        return StepResult(reward, last and step.discount == 0.0, last and step.discount != 0.0, frames, {})

    def read_vectors(self) -> Mapping[str, Any]:
        """Return dm_control's own observation, by name."""
        physics, task = self._env.physics, self._env.task
        if hasattr(task, "get_observation"):
            observation: Mapping[str, Any] = task.get_observation(physics)
            return observation
        # The random state is for corruptions of observables, of which there are none.
        return {
            name: task.observables[path].observation_callable(physics, self._random_state)()
            for name, path in DUPLO_OBSERVABLES.items()
        }

    def get_model_data(self) -> tuple[Any, Any]:
        physics = self._env.physics
        return physics.model.ptr, physics.data.ptr

    def close(self) -> None:
        super().close()
        if self._env is not None:
            self._env.close()
            self._env = None


def load_dmc_env(name: str, random_state: np.random.RandomState) -> Any:
    """Load the dm_control environment of task `name`, whose resets draw from `random_state`."""
    random_state.seed(MODEL_SEED)
    with _suppress_absl_warnings():
        return _load_reach_duplo(random_state) if name == "reach_duplo" else _load_suite(name, random_state)


def _build_views(task: Task, settings: TaskSettings) -> list[View]:
    size, views = settings.image_size or 0, []
    for name in settings.views:
        camera = name.removesuffix(FOREGROUND_SUFFIX)
        if camera == name:
            views.append(View(name, size, size))
        elif camera in settings.views:
            views.append(View(name, size, size, derived_from=camera, fill=FILL_BY_TASK.get(task.id, DEFAULT_FILL)))
        else:
            raise ValueError(
                f"missing camera: view {name} is derived from {camera}. Add it: views={[camera, *settings.views]}"
            )
    return views


@contextmanager
def _suppress_absl_warnings() -> Iterator[None]:
    """Suppress the deprecation warnings of dm_control's own model files."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _load_suite(name: str, random_state: np.random.RandomState) -> Any:
    from dm_control import suite

    domain, task = split_task_name(name)
    return suite.load(domain, task, task_kwargs={"random": random_state})


def _load_reach_duplo(random_state: np.random.RandomState) -> Any:
    from dm_control import manipulation
    from dm_control.manipulation.shared import cameras

    env = manipulation.load("reach_duplo_vision", seed=random_state)
    body = env.task.root_entity.mjcf_model.worldbody
    existing = {camera.name for camera in body.all_children() if camera.tag == "camera"}
    for camera in CAMERAS["reach_duplo"]:
        if camera not in existing:
            body.add("camera", **getattr(cameras, camera.upper())._asdict())
    # manyview renders the views; the task's own cameras would cost another rendering per step.
    for observable in env.task.observables.values():
        observable.enabled = False
    return env
