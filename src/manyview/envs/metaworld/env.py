"""Meta-World environment with named views."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from manyview.envs.rendering.gl import configure_headless_gl
from manyview.envs.rendering.mujoco import RenderedViews
from manyview.envs.simulated import SimulatedEnv, StepResult
from manyview.envs.suite import Task, TaskSettings
from manyview.envs.views import State, View
from manyview.utils.seeding import get_rng_state, restore_rng

UPSIDE_DOWN = ("corner", "corner2", "corner3", "corner4")
"""Cameras mounted upside down; their images are rotated by 180 degrees, since a flip would mirror the scene."""


class MetaWorld(SimulatedEnv):
    """A Meta-World task with named views.

    An action moves the hand along three axes and opens or closes the gripper, each in [-1, 1]. Every reset samples the
    positions of the objects and of the goal, which only the images show. The reward is Meta-World's shaped reward,
    summed over the action repeat. `info["success"]` is whether the task succeeded in any of these frames. Success does
    not end the episode, which is truncated after 500 frames.
    """

    versioned_packages = "mujoco and metaworld"
    default_info: ClassVar[dict[str, Any]] = {"success": False}

    def __init__(self, task: Task, settings: TaskSettings) -> None:
        configure_headless_gl()  # before mujoco is imported
        from manyview.envs.metaworld.simulation import MetaWorldSimulator

        size = settings.image_size or 0
        views = [View(view, size, size) for view in settings.views]
        super().__init__(task, settings, views, spaces.Box(-1.0, 1.0, (4,), np.float32))
        self._simulator = MetaWorldSimulator(task.id.removeprefix("metaworld/"), image_size=size)

    @property
    def physics_error_types(self) -> tuple[type[Exception], ...]:
        from manyview.envs.metaworld.simulation import PhysicsError

        return (PhysicsError,)

    def seed_episodes(self) -> None:
        """Do nothing: episodes draw directly from `np_random`."""

    def get_rng_state(self) -> State:
        return get_rng_state(self.np_random)

    def set_rng_state(self, state: State) -> None:
        self.np_random = restore_rng(state)

    def reset_simulation(self) -> None:
        self._simulator.reset(self.np_random)

    def step_simulation(self, action: Any) -> StepResult:
        total, succeeded, last, frames = 0.0, False, False, 0
        for _ in range(self._settings.action_repeat or 1):
            reward, success, last = self._simulator.step(action)
            total, succeeded, frames = total + reward, succeeded or success, frames + 1
            if last:
                break
        return StepResult(total, False, last, frames, {"success": succeeded})

    def get_model_data(self) -> tuple[Any, Any]:
        return self._simulator.model, self._simulator.data

    def render_views(self) -> RenderedViews:
        images, failures = super().render_views()
        for name, image in images.items():
            if image is not None and name in UPSIDE_DOWN:
                images[name] = image[::-1, ::-1]
        return RenderedViews(images, failures)

    def close(self) -> None:
        super().close()
        self._simulator.close()
