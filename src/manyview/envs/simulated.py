"""Base class of MuJoCo environments: physics errors, failing cameras and exact snapshots."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from manyview.envs.rendering.mujoco import MujocoRenderer, Orbit, RenderedViews
from manyview.envs.suite import Task, TaskSettings
from manyview.envs.views import (
    Image,
    MultiViewEnv,
    NotRestorable,
    Observation,
    State,
    StateVector,
    Vector,
    View,
    validate_counts,
    warn_camera_failures,
)

RESET_ATTEMPTS = 10
"""Resets tried before a physics error at reset is raised."""


class StepResult(NamedTuple):
    """Result of an agent step, without the observation."""

    reward: float
    terminated: bool
    truncated: bool
    frames: int
    """Simulator frames taken; the last step of an episode may take fewer than the action repeat."""
    info: dict[str, Any]


class SimulatedEnv(MultiViewEnv):
    """Base class of environments that MuJoCo simulates and renders.

    A physics error truncates the episode, with the last valid observation and `info["physics_error"]`. A camera that
    fails to render is absent for that step and is rendered again at the next one. `counts` counts both.

    A snapshot holds the random state before the episode's reset and the actions since. Restoring replays them without
    rendering and checks that the physics state is exactly equal. So everything that a task keeps or changes (its
    variables, its model, contacts) is restored without knowledge of the task.
    """

    versioned_packages: ClassVar[str]
    """Packages whose versions determine the states that the same actions lead to."""
    added_cameras: Mapping[str, Orbit] = {}
    """Cameras by name that the model does not have."""
    rangefinders: ClassVar[bool] = True
    """True if the rays of range finders are rendered."""
    default_info: ClassVar[dict[str, Any]] = {}
    """Values at a reset and at a physics error for the info keys that `step_simulation` returns."""

    def __init__(
        self,
        task: Task,
        settings: TaskSettings,
        views: Sequence[View],
        action_space: spaces.Box,
        *,
        state_sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Make the environment; `state_sizes` has the size of each state vector that `settings.state` names."""
        vectors = [StateVector(name, (state_sizes or {})[name]) for name in settings.state]
        super().__init__(views, action_space, state_vectors=vectors)
        self._task, self._settings = task, settings
        self._vectors: dict[str, Vector] = {}
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
        """Exceptions of the engine for diverged physics or an episode that cannot start."""

    @abstractmethod
    def seed_episodes(self) -> None:
        """Seed the generator that episodes draw from, using `np_random`."""

    @abstractmethod
    def get_rng_state(self) -> State:
        """Return the state of the generator that episodes draw from."""

    @abstractmethod
    def set_rng_state(self, state: State) -> None:
        """Restore the state of the generator that episodes draw from."""

    @abstractmethod
    def reset_simulation(self) -> None:
        """Start an episode without rendering."""

    @abstractmethod
    def step_simulation(self, action: Any) -> StepResult:
        """Take an agent step without rendering."""

    @abstractmethod
    def get_model_data(self) -> tuple[Any, Any]:
        """Return MuJoCo's current model and data."""

    def read_vectors(self) -> Mapping[str, Any]:
        """Return all state vectors on offer, of the current state; called if `settings.state` names any."""
        return {}

    def render_views(self) -> RenderedViews:
        """Render all views of the current state."""
        if self._renderer is None:
            max_size = max(max(view.height, view.width) for view in self.views)
            self._renderer = MujocoRenderer(
                self.get_model_data,
                max_size=max_size,
                quality=self._settings.render_quality or "standard",
                scale=self._settings.render_scale,
                rangefinders=self.rangefinders,
                added_cameras=self.added_cameras,
            )
        return self._renderer.render_views(self.views)

    def get_physics_state(self) -> Any:
        """Return the full integration state, including the solver's warm start."""
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
            observation = self.observe(self._images, self._vectors)
            return observation, 0.0, False, True, {**self.default_info, "physics_error": str(error)}
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
        self._vectors = self._read_selected()
        return self.observe(self._images, self._vectors)

    def _read_selected(self) -> dict[str, Vector]:
        vectors = self.read_vectors() if self.state_vectors else {}
        return {vector.name: flatten_vector(vectors[vector.name]) for vector in self.state_vectors}

    def snapshot(self) -> State:
        if not self._rng_state_at_reset:
            raise NotRestorable(f"no snapshot of {self._task.id}: it has not been reset yet. Call reset() first.")
        return {
            "task": self._task.id,
            "action_repeat": self._settings.action_repeat,
            "rng_at_reset": self._rng_state_at_reset,
            "actions": np.array(self._actions, np.float32).reshape(-1, *(self.action_space.shape or ())),
            # After a physics error the state is invalid, and the next call must be a reset.
            "physics": None if self._diverged else self.get_physics_state(),
            "images": {name: image.copy() for name, image in self._images.items() if image is not None},
            "counts": dict(self.counts),
            # Left out if there are none, as in snapshots from before state vectors.
            **({"vectors": {name: part.copy() for name, part in self._vectors.items()}} if self._vectors else {}),
        }

    def restore(self, state: State) -> Observation:
        for name, expected in (("task", self._task.id), ("action_repeat", self._settings.action_repeat)):
            if state[name] != expected:
                raise NotRestorable(
                    f"snapshot does not fit this environment: expected {name} {expected}, got {state[name]}"
                )
        actions = state["actions"]
        is_compatible = (actions.dtype, actions.shape[1:]) == (np.float32, self.action_space.shape or ())
        if not (is_compatible and np.isfinite(actions).all()):
            raise NotRestorable(
                f"{self._task.id}: invalid actions in the snapshot: expected finite float32 of shape "
                f"{('steps', *(self.action_space.shape or ()))}, got {actions.dtype} of shape {actions.shape}"
            )
        self.set_rng_state(state["rng_at_reset"])
        self._seeded = True
        self._reset_with_retries()
        for count, action in enumerate(actions, start=1):
            result = self.step_simulation(action)
            if (result.terminated or result.truncated) and count < len(actions):
                raise NotRestorable(
                    f"{self._task.id}: invalid snapshot: expected an episode of at least {len(actions)} actions, got "
                    f"its end after {count}"
                )
            self._actions.append(np.array(action, np.float32))
        if state["physics"] is not None and not np.array_equal(self.get_physics_state(), state["physics"]):
            raise NotRestorable(
                f"{self._task.id}: replaying the actions of the snapshot led to a different physics state. Restore it "
                f"with the same versions of {self.versioned_packages} and on the same kind of processor."
            )
        self._diverged = state["physics"] is None
        self._images = {view.name: self._validate_image(view, state["images"].get(view.name)) for view in self.views}
        self.counts = validate_counts(state["counts"], self.counts)
        self._vectors = self._restore_vectors(state)
        return self.observe(self._rerender_views(), self._vectors)

    def _restore_vectors(self, state: State) -> dict[str, Vector]:
        """Read the state vectors again; after a physics error return those of the snapshot."""
        if not self._diverged:
            return self._read_selected()
        saved = {vector.name: state.get("vectors", {}).get(vector.name) for vector in self.state_vectors}
        for vector in self.state_vectors:
            value = saved[vector.name]
            if not isinstance(value, np.ndarray) or (value.shape, value.dtype) != ((vector.size,), np.float32):
                raise NotRestorable(
                    f"{self._task.id}: invalid state vector {vector.name!r} in the snapshot: expected float32 of shape "
                    f"{(vector.size,)}, got {value}"
                )
        return {name: np.asarray(value) for name, value in saved.items()}

    def _validate_image(self, view: View, image: Any) -> Image | None:
        """Return an image of the snapshot; None for a camera that had failed."""
        if image is not None and (image.shape, image.dtype) != (view.shape, np.uint8):
            raise NotRestorable(
                f"{self._task.id}: invalid image of view {view.name!r} in the snapshot: expected uint8 of shape "
                f"{view.shape}, got {image.dtype} of shape {image.shape}"
            )
        return None if image is None else np.asarray(image)

    def _rerender_views(self) -> dict[str, Image | None]:
        """Render the restored state; keep the saved image of a camera that fails.

        The images may differ from the saved ones, since drivers differ.
        """
        if self._diverged:
            return self._images
        rendered = self.render_views().images
        return {
            name: saved if saved is None or rendered[name] is None else rendered[name]
            for name, saved in self._images.items()
        }

    @property
    def renderer(self) -> str | None:
        """OpenGL's name of the renderer; None before the first image."""
        return None if self._renderer is None else self._renderer.driver

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()


def flatten_vector(value: Any) -> Vector:
    """Return numbers of any shape as one float32 vector."""
    return np.array(value, np.float32).reshape(-1)
