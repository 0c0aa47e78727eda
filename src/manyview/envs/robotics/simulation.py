"""Fetch and Adroit simulators with episodes from a single generator."""

from contextlib import redirect_stderr
from io import StringIO
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

with redirect_stderr(StringIO()):  # its import prints a notice about earlier versions of Adroit's dense rewards
    from gymnasium_robotics.utils import mujoco_utils

# gymnasium-robotics 1.4.2 asserts `joint_type in (mjJNT_HINGE, mjJNT_SLIDE)`. With mujoco 3.16 this is False for the
# numpy integers of a model, and no Fetch task can be made; it is True for plain integers, and nothing else changes.
_joint_types = {name: int(member) for name, member in mujoco.mjtJoint.__members__.items()}
mujoco_utils.mujoco = SimpleNamespace(**{**vars(mujoco), "mjtJoint": SimpleNamespace(**_joint_types)})


class RoboticsSimulator:
    """A Gymnasium-Robotics environment whose resets draw from a given generator."""

    def __init__(self, env_id: str) -> None:
        self._env = gym.make(env_id, disable_env_checker=True)
        self._base: Any = self._env.unwrapped
        self.action_space = self._env.action_space

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
        self._env.reset()
        if hasattr(self._base, "_render_callback"):
            # Fetch moves the ball that marks the goal only when it renders itself. Right after a reset this changes
            # nothing of the physics; in mid-episode it would, since Fetch computes actions from rendered positions.
            self._base._render_callback()

    def step(self, action: NDArray[np.float32]) -> tuple[float, bool, bool]:
        """Take a simulator step and return the reward, success and truncation."""
        # The observation is unused: vectors of joints, objects and goals, from which named states could be read.
        _, reward, _, truncated, info = self._env.step(action)
        return float(reward), bool(info["is_success" if "is_success" in info else "success"]), bool(truncated)

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()
