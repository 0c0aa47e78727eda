"""A robot with two cameras and actions in physical units, and runs for it."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.envs import MultiView
from manyview.runtime.inputs import Observation
from manyview.training import RunDir, run
from tests.support.runs import make_short_config

TASK = "tests.support.robots:make_env"
ACTION_LOW, ACTION_HIGH = (-2.0, 0.0), (4.0, 10.0)
CAMERA_SHAPE = (30, 40, 3)
IMAGE_SIZES = (24, 16)
"""Image sizes after the resize in the environment, then after that in the run."""


class RobotEnv(gym.Env[dict[str, NDArray[Any]], NDArray[Any]]):
    """Robot with two noise cameras; `last_action` is the last commanded action."""

    def __init__(self) -> None:
        self.metadata = {"render_modes": [], "control_hz": 20}
        images = spaces.Box(0, 255, CAMERA_SHAPE, np.uint8)
        self.observation_space: Any = spaces.Dict({"front": images, "wrist": images})
        self.action_space: Any = spaces.Box(np.array(ACTION_LOW, np.float32), np.array(ACTION_HIGH, np.float32))
        self.last_action: NDArray[Any] | None = None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: NDArray[Any]) -> Any:
        self.last_action, self._steps = action, self._steps + 1
        return self._observe(), float(action[0]), False, self._steps >= 10, {}

    def _observe(self) -> dict[str, NDArray[Any]]:
        return {name: self.np_random.integers(0, 256, CAMERA_SHAPE, np.uint8) for name in ("front", "wrist")}


def make_env(*, aspect: str = "pad") -> gym.Env[Any, Any]:
    """Return the robot with the wrapper that a run uses."""
    views = {"front": "front", "wrist": "wrist"}
    return MultiView(RobotEnv(), views=views, image_size=IMAGE_SIZES[0], aspect=aspect, rescale_actions=True)  # type: ignore[arg-type]


def train_robot(path: Path, **changes: Any) -> Path:
    """Train for a few steps with three stacked frames and return the run directory."""
    settings: dict[str, Any] = {
        "env": {"frame_stack": 3, "image_size": IMAGE_SIZES[1], "augmented_view": "none"},
        "schedule": {"frames": 40, "random_steps": 20, "seed_frames": 30},
        "evaluation": {"every_frames": 20, "episodes": 1, "video": False},
        "logging": {"checkpoint_every_frames": 20, "tensorboard": False},
        "compute": {"device": "cpu", "threads": 1},
    }
    run(make_short_config("drqv2+mem", task=TASK, **{**settings, **changes}), RunDir(path))
    return path


def make_observation(policy: Any, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return a random observation with the image sizes of the network."""
    images = {view.name: rng.integers(0, 256, view.shape, np.uint8) for view in policy.spec.views}
    return images | {vector.name: rng.normal(size=vector.size) for vector in policy.spec.vectors}


def keep_views(observation: Observation, present: tuple[str, ...], policy: Any) -> Observation:
    """Return the observation with only the views in `present`."""
    views = [view.name for view in policy.spec.views]
    return {name: value for name, value in observation.items() if name in present or name not in views}


class RobotWithStateEnv(RobotEnv):
    """Robot that also observes its joints and gripper."""

    def __init__(self) -> None:
        super().__init__()
        vectors = {"joints": spaces.Box(-9, 9, (2,), np.float32), "gripper": spaces.Box(0, 1, (1,), np.float32)}
        self.observation_space = spaces.Dict({**self.observation_space.spaces, **vectors})

    def _observe(self) -> dict[str, NDArray[Any]]:
        joints, gripper = np.array([self._steps, -self._steps], np.float32), np.array([self._steps / 10], np.float32)
        return {**super()._observe(), "joints": joints, "gripper": gripper}


def make_env_with_state() -> gym.Env[Any, Any]:
    """Return the robot with its joints and gripper as state vectors."""
    views = {"front": "front", "wrist": "wrist"}
    state = ("joints", "gripper")
    return MultiView(RobotWithStateEnv(), views=views, state=state, image_size=IMAGE_SIZES[0], rescale_actions=True)
