"""Fetch and Adroit environments with named views; imports mujoco, so choose the renderer before."""

from collections.abc import Mapping
from contextlib import redirect_stderr
from io import StringIO
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from manyview.envs.manipulation import ManipulationEnv
from manyview.envs.rendering.mujoco import Orbit
from manyview.envs.suite import Task, TaskSettings
from manyview.envs.views import View

with redirect_stderr(StringIO()):  # its import prints a notice about earlier versions of Adroit's dense rewards
    from gymnasium_robotics.utils import mujoco_utils

# gymnasium-robotics 1.4.2 asserts `joint_type in (mjJNT_HINGE, mjJNT_SLIDE)`. With mujoco 3.16 this is False for the
# numpy integers of a model, and no Fetch task can be made; it is True for plain integers, and nothing else changes.
_joint_types = {name: int(member) for name, member in mujoco.mjtJoint.__members__.items()}
mujoco_utils.mujoco = SimpleNamespace(**{**vars(mujoco), "mjtJoint": SimpleNamespace(**_joint_types)})

GRIPPER_NUMBERS = [0, 1, 2, 9, 10, 20, 21, 22, 23, 24]
"""Places of the gripper's position, fingers and their velocities in an observation of Fetch with an object."""
HAND_JOINTS = {
    f"AdroitHand{name}{suffix}-v1": joints
    for name, joints in {"Door": 27, "Hammer": 26, "Pen": 24, "Relocate": 30}.items()
    for suffix in ("", "Sparse")
}
"""Joint angles of arm and hand, with which an observation of Adroit starts; Door's leaves out the first."""


class RoboticsSimulator:
    """A Gymnasium-Robotics environment whose resets draw from a given generator."""

    def __init__(self, env_id: str) -> None:
        self._env = gym.make(env_id, disable_env_checker=True)
        self._base: Any = self._env.unwrapped
        self.action_space: Any = self._env.action_space
        self._observation: Any = _make_blank(self._env.observation_space)

    @property
    def model(self) -> Any:
        """MuJoCo's current model."""
        return self._base.model

    @property
    def data(self) -> Any:
        """MuJoCo's current data."""
        return self._base.data

    def reset(self, rng: np.random.Generator) -> None:
        """Start an episode that depends only on `rng`."""
        self._base.np_random = rng
        self._observation, _ = self._env.reset()
        if hasattr(self._base, "_render_callback"):
            # Fetch moves the ball that marks the goal only when it renders itself. Right after a reset this changes
            # nothing of the physics; in mid-episode it would, since Fetch computes actions from rendered positions.
            self._base._render_callback()

    def step(self, action: NDArray[np.float32]) -> tuple[float, bool, bool]:
        """Take a simulator step and return the reward, success and truncation."""
        self._observation, reward, _, truncated, info = self._env.step(action)
        return float(reward), bool(info["is_success" if "is_success" in info else "success"]), bool(truncated)

    def read_vectors(self) -> dict[str, NDArray[Any]]:
        """Return the parts of the last observation: the robot's own, and what only a simulator knows."""
        observation = self._observation
        if not isinstance(observation, dict):
            hand = HAND_JOINTS[self._base.spec.id]
            return {"hand": observation[:hand], "object": observation[hand:]}
        numbers, goal = observation["observation"], observation["desired_goal"]
        if len(numbers) == len(GRIPPER_NUMBERS):  # Reach has no object
            return {"gripper": numbers, "goal": goal}
        return {"gripper": numbers[GRIPPER_NUMBERS], "object": np.delete(numbers, GRIPPER_NUMBERS), "goal": goal}

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()


def _make_blank(space: Any) -> Any:
    """Return an observation of zeros, from which sizes follow before the first reset."""
    if isinstance(space, gym.spaces.Dict):
        return {name: np.zeros(part.shape) for name, part in space.spaces.items()}
    return np.zeros(space.shape)


class GymnasiumRobotics(ManipulationEnv):
    """A task of Gymnasium-Robotics with named views.

    Actions lie in [-1, 1]. Every reset samples objects and goal, which only the images show unless
    `settings.state` names them. The episode is truncated
    after 50 frames with Fetch, and after 200 with Adroit.
    """

    versioned_packages = "mujoco and gymnasium-robotics"

    def __init__(self, task: Task, settings: TaskSettings, *, env_id: str, added_cameras: Mapping[str, Orbit]) -> None:
        size = settings.image_size or 0
        simulator = RoboticsSimulator(env_id)
        views = [View(view, size, size) for view in settings.views]
        sizes = {name: len(part) for name, part in simulator.read_vectors().items()}
        super().__init__(task, settings, views, simulator.action_space, state_sizes=sizes)
        self._simulator, self.added_cameras = simulator, added_cameras
