"""Meta-World simulator with episodes from a single generator."""

from typing import Any

import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from numpy.typing import NDArray


class MetaWorldSimulator:
    """A Meta-World environment whose resets draw from a given generator."""

    def __init__(self, name: str, *, image_size: int) -> None:
        # The size only determines the size of the render buffer.
        self._env = ALL_V3_ENVIRONMENTS[f"{name}-v3"](width=image_size, height=image_size)
        # In place of a benchmark's `set_task`: every reset samples its objects and goal.
        self._env._set_task_called = True
        self._env._freeze_rand_vec = False
        self._env.seeded_rand_vec = True

    @property
    def model(self) -> Any:
        """MuJoCo's current model."""
        return self._env.model

    @property
    def data(self) -> Any:
        """MuJoCo's current data."""
        return self._env.data

    def reset(self, rng: np.random.Generator) -> None:
        """Start an episode that depends only on `rng`."""
        self._env.np_random = rng
        self._env.reset()
        # Meta-World moves objects and goals in the model and leaves the data unchanged: its own first image shows them
        # up to 37 cm from their positions. These calls update only the rendered positions, not the physics.
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)

    def step(self, action: NDArray[np.float32]) -> tuple[float, bool, bool]:
        """Take a simulator step and return the shaped reward, success and truncation."""
        _, reward, _, truncated, info = self._env.step(action)
        return float(reward), bool(info["success"]), bool(truncated)

    def read_vectors(self) -> dict[str, NDArray[Any]]:
        """Return the hand and its gripper, both objects and the goal."""
        current = self._env._get_curr_obs_combined_no_goal()
        return {"hand": current[:4], "objects": current[4:], "goal": self._env._target_pos}

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()
