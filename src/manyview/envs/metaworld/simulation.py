"""Meta-World simulator with episodes from a single generator and divergence errors."""

from typing import Any

import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from numpy.typing import NDArray

DIVERGENCE_WARNINGS = (
    mujoco.mjtWarning.mjWARN_INERTIA,
    mujoco.mjtWarning.mjWARN_BADQPOS,
    mujoco.mjtWarning.mjWARN_BADQVEL,
    mujoco.mjtWarning.mjWARN_BADQACC,
    mujoco.mjtWarning.mjWARN_BADCTRL,
)
"""MuJoCo warnings after which it has silently reset the simulation in mid-episode."""


class PhysicsError(RuntimeError):
    """The simulation diverged."""


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
        """Take a simulator step and return the shaped reward, success and truncation.

        Raises `PhysicsError` if the simulation diverged.
        """
        try:
            _, reward, _, truncated, info = self._env.step(action)
        except Exception as error:
            # The reward of an invalid state can raise many exceptions.
            if self._has_diverged():
                raise PhysicsError(f"the simulation diverged: {error}") from error
            raise
        if self._has_diverged():
            raise PhysicsError("the simulation diverged")
        return float(reward), bool(info["success"]), bool(truncated)

    def _has_diverged(self) -> bool:
        # MuJoCo warns about an invalid state of the last substep only in the next one.
        finite = np.isfinite(self.data.qpos).all() and np.isfinite(self.data.qvel).all()
        return not finite or any(self.data.warning[kind].number for kind in DIVERGENCE_WARNINGS)

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()
