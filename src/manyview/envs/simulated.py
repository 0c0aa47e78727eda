"""What environments around a physics engine share: errors, cameras that fail, and exact snapshots."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from manyview.envs.rendering.mujoco import MujocoRenderer, RenderedViews
from manyview.envs.suite import Task, TaskSettings
from manyview.envs.views import (
    Image,
    MultiViewEnv,
    NotRestorable,
    Observation,
    State,
    View,
    validate_counts,
    warn_camera_failures,
)

RESET_ATTEMPTS = 10


class StepResult(NamedTuple):
    """What an agent step brought, not counting what is seen."""

    reward: float
    terminated: bool
    truncated: bool
    frames: int
    """How many simulator frames it took: the last step of an episode may be short."""
    info: dict[str, Any]


class SimulatedEnv(MultiViewEnv):
    """A physics error ends the episode as truncated, with the last good observation and `info["physics_error"]`.

    A camera that cannot be drawn is absent for that step and tried again at the next; `counts` has both.

    A snapshot is the random state before the episode's reset, and the actions since: restoring plays them again
    without drawing, and checks that the physics arrived at exactly the same state. So whatever a task keeps or changes
    (its own variables, its model, contacts) is restored without being known here.
    """

    versioned_packages: ClassVar[str]
    """The packages whose versions decide where the same actions lead."""
    rangefinders: ClassVar[bool] = True
    """Whether the rays of range finders are drawn."""
    default_info: ClassVar[dict[str, Any]] = {}
    """What `info` says at a reset and at a physics error of the things that `step_simulation` tells."""

    def __init__(self, task: Task, settings: TaskSettings, views: Sequence[View], action_space: spaces.Box) -> None:
        super().__init__(views, action_space)
        self._task, self._settings = task, settings
        self._renderer: MujocoRenderer | None = None
        self._images: dict[str, Image | None] = {}
        self._rng_state_at_reset: State = {}
        self._actions: list[Any] = []
        self._seeded = self._diverged = False
        self._failing_cameras: frozenset[str] = frozenset()
        cameras = [view.name for view in self.views if view.derived_from is None]
        self.counts = {"physics_errors": 0, **{f"camera_failures/{name}": 0 for name in cameras}}

    @property
    @abstractmethod
    def physics_error_types(self) -> tuple[type[Exception], ...]:
        """What the engine raises when its physics breaks, or an episode cannot begin."""

    @abstractmethod
    def seed_episodes(self) -> None:
        """Seed whatever episodes draw from, from `np_random`."""

    @abstractmethod
    def get_rng_state(self) -> State: ...

    @abstractmethod
    def set_rng_state(self, state: State) -> None: ...

    @abstractmethod
    def reset_simulation(self) -> None:
        """Begin an episode, without drawing anything."""

    @abstractmethod
    def step_simulation(self, action: Any) -> StepResult:
        """Take an agent step, without drawing anything."""

    @abstractmethod
    def get_model_data(self) -> tuple[Any, Any]:
        """MuJoCo's model and data as they are now."""

    def render_views(self) -> RenderedViews:
        if self._renderer is None:
            max_size = max(max(view.height, view.width) for view in self.views)
            quality = self._settings.render_quality or "standard"
            self._renderer = MujocoRenderer(
                self.get_model_data, max_size=max_size, quality=quality, rangefinders=self.rangefinders
            )
        return self._renderer.render_views(self.views)

    def get_physics_state(self) -> Any:
        """Everything the next step depends on, the solver's warm start included."""
        import mujoco

        (model, data), spec = self.get_model_data(), mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(model, spec))
        mujoco.mj_getState(model, data, state, spec)
        return state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None or not self._seeded:
            self.seed_episodes()
            self._seeded = True
        self._reset_with_retries()
        info = dict(self.default_info)
        return self._observe_cameras(info), info

    def _reset_with_retries(self) -> None:
        for attempt in range(RESET_ATTEMPTS):
            self._rng_state_at_reset = self.get_rng_state()
            try:
                self.reset_simulation()
                break
            except self.physics_error_types:
                self.counts["physics_errors"] += 1
                if attempt == RESET_ATTEMPTS - 1:
                    raise
        self._actions, self._diverged = [], False

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        try:
            reward, terminated, truncated, frames, info = self.step_simulation(action)
        except self.physics_error_types as error:
            self.counts["physics_errors"] += 1
            self._diverged = True
            return self.observe(self._images), 0.0, False, True, {**self.default_info, "physics_error": str(error)}
        self._actions.append(np.array(action, np.float32))
        return self._observe_cameras(info), reward, terminated, truncated, {**info, "frames": frames}

    def _observe_cameras(self, info: dict[str, Any]) -> Observation:
        self._images, failures = self.render_views()
        if failures:
            info["camera_failures"] = {name: f"{type(error).__name__}: {error}" for name, error in failures.items()}
            for name in failures:
                self.counts[f"camera_failures/{name}"] += 1
        self._failing_cameras = warn_camera_failures(
            self._task.id, info.get("camera_failures", {}), self._failing_cameras
        )
        return self.observe(self._images)

    def snapshot(self) -> State:
        if not self._rng_state_at_reset:
            raise NotRestorable(f"{self._task.id} has not been reset yet, so there is nothing to restore")
        return {
            "task": self._task.id,
            "action_repeat": self._settings.action_repeat,
            "rng_at_reset": self._rng_state_at_reset,
            "actions": np.array(self._actions, np.float32).reshape(-1, *(self.action_space.shape or ())),
            # After a physics error there is no state worth the name, and the next call is a reset.
            "physics": None if self._diverged else self.get_physics_state(),
            "images": {name: picture.copy() for name, picture in self._images.items() if picture is not None},
            "counts": dict(self.counts),
        }

    def restore(self, state: State) -> Observation:
        for name, expected in (("task", self._task.id), ("action_repeat", self._settings.action_repeat)):
            if state[name] != expected:
                raise NotRestorable(f"the snapshot is of {name} {state[name]}, this environment is of {expected}")
        actions = state["actions"]
        is_compatible = (actions.dtype, actions.shape[1:]) == (np.float32, self.action_space.shape or ())
        if not (is_compatible and np.isfinite(actions).all()):
            raise NotRestorable(f"{self._task.id}: the snapshot's actions are not such as this environment takes")
        self.set_rng_state(state["rng_at_reset"])
        self._seeded = True
        self._reset_with_retries()
        for number, action in enumerate(actions, start=1):
            result = self.step_simulation(action)
            if (result.terminated or result.truncated) and number < len(actions):
                raise NotRestorable(
                    f"{self._task.id}: the snapshot has {len(actions)} actions, {number} end the episode"
                )
            self._actions.append(np.array(action, np.float32))
        if state["physics"] is not None and not np.array_equal(self.get_physics_state(), state["physics"]):
            raise NotRestorable(
                f"{self._task.id}: the same actions led to another state than when the snapshot was taken; were the "
                f"versions of {self.versioned_packages} and the kind of processor the same?"
            )
        self._diverged = state["physics"] is None
        self._images = {view.name: self._restored(view, state["images"].get(view.name)) for view in self.views}
        self.counts = validate_counts(state["counts"], self.counts)
        return self.observe(self._redrawn())

    def _restored(self, view: View, picture: Any) -> Image | None:
        """Check a picture from outside; of a camera that had failed there is none."""
        if picture is not None and (picture.shape, picture.dtype) != (view.shape, np.uint8):
            raise NotRestorable(f"{self._task.id}: the snapshot's picture of {view.name!r} is not of this environment")
        return None if picture is None else np.asarray(picture)

    def _redrawn(self) -> dict[str, Image | None]:
        """Draw the restored state anew: another driver shows it otherwise. A camera that fails stays as it was."""
        if self._diverged:
            return self._images
        drawn = self.render_views().images
        seen = {name: picture for name, picture in drawn.items() if self._images[name] is not None}
        return {name: kept if seen.get(name) is None else seen[name] for name, kept in self._images.items()}

    @property
    def renderer(self) -> str | None:
        """What OpenGL calls the thing that draws; None before the first picture."""
        return None if self._renderer is None else self._renderer.driver

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
