"""Meta-World environment with named views."""

import numpy as np
from gymnasium import spaces

from manyview.envs.manipulation import ManipulationEnv
from manyview.envs.rendering.gl import configure_headless_gl
from manyview.envs.rendering.mujoco import RenderedViews
from manyview.envs.suite import Task, TaskSettings
from manyview.envs.views import View

UPSIDE_DOWN = ("corner", "corner2", "corner3", "corner4")
"""Cameras mounted upside down; their images are rotated by 180 degrees, since a flip would mirror the scene."""

STATE_SIZES = {"hand": 4, "objects": 14, "goal": 3}


class MetaWorld(ManipulationEnv):
    """A Meta-World task with named views.

    An action moves the hand along three axes and opens or closes the gripper, each in [-1, 1]. Every reset samples the
    positions of the objects and of the goal, which only the images show unless `settings.state` names them. The reward
    is Meta-World's shaped reward. The episode is truncated after 500 frames.
    """

    versioned_packages = "mujoco and metaworld"

    def __init__(self, task: Task, settings: TaskSettings) -> None:
        configure_headless_gl()  # before mujoco is imported
        from manyview.envs.metaworld.simulation import MetaWorldSimulator

        size = settings.image_size or 0
        views = [View(view, size, size) for view in settings.views]
        action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        super().__init__(task, settings, views, action_space, state_sizes=STATE_SIZES)
        self._simulator = MetaWorldSimulator(task.id.removeprefix("metaworld/"), image_size=size)

    def render_views(self) -> RenderedViews:
        images, failures = super().render_views()
        for name, image in images.items():
            if image is not None and name in UPSIDE_DOWN:
                images[name] = image[::-1, ::-1]
        return RenderedViews(images, failures)
