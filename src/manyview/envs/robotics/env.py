"""Fetch and Adroit environments with named views."""

from manyview.envs.manipulation import ManipulationEnv
from manyview.envs.rendering.gl import configure_headless_gl
from manyview.envs.robotics.suite import ADDED_CAMERAS, ENV_IDS
from manyview.envs.suite import Task, TaskSettings
from manyview.envs.views import View


class GymnasiumRobotics(ManipulationEnv):
    """A task of Gymnasium-Robotics with named views.

    Actions lie in [-1, 1]. Every reset samples objects and goal, which only the images show. The episode is truncated
    after 50 frames with Fetch, and after 200 with Adroit.
    """

    versioned_packages = "mujoco and gymnasium-robotics"
    added_cameras = ADDED_CAMERAS

    def __init__(self, task: Task, settings: TaskSettings) -> None:
        configure_headless_gl()  # before mujoco is imported
        from manyview.envs.robotics.simulation import RoboticsSimulator

        size = settings.image_size or 0
        simulator = RoboticsSimulator(ENV_IDS[task.id])
        super().__init__(task, settings, [View(view, size, size) for view in settings.views], simulator.action_space)
        self._simulator = simulator
