"""A Meta-World simulator whose episodes depend on one generator alone, and which says when its physics broke."""

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
"""After these MuJoCo has put everything back to its first position in mid-episode, and goes on."""


class PhysicsError(RuntimeError):
    """The simulation diverged."""


class MetaWorldSimulator:
    def __init__(self, name: str, *, image_size: int) -> None:
        # The size only makes room for the picture.
        self._env = ALL_V3_ENVIRONMENTS[f"{name}-v3"](width=image_size, height=image_size)
        # What a benchmark's `set_task` decides: here every reset draws its own objects and goal.
        self._env._set_task_called = True
        self._env._freeze_rand_vec = False
        self._env.seeded_rand_vec = True

    @property
    def model(self) -> Any:
        return self._env.model

    @property
    def data(self) -> Any:
        return self._env.data

    def reset(self, rng: np.random.Generator) -> None:
        """Begin an episode that `generator` draws, whatever came before it."""
        self._env.np_random = rng
        self._env.reset()
        # Meta-World moves objects and goals in the model and leaves the data as it was: its own first picture shows
        # them up to 37 cm from where they are. This moves what is drawn, and no part of the physics.
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)

    def step(self, action: NDArray[np.float32]) -> tuple[float, bool, bool]:
        """The shaped reward, whether the task is done, whether the time is over. `PhysicsError` if it diverged."""
        try:
            _, reward, _, truncated, info = self._env.step(action)
        except Exception as error:
            # A reward of a state that is none can fail in many ways.
            if self._has_diverged():
                raise PhysicsError(f"the simulation diverged: {error}") from error
            raise
        if self._has_diverged():
            raise PhysicsError("the simulation diverged")
        return float(reward), bool(info["success"]), bool(truncated)

    def _has_diverged(self) -> bool:
        # A bad state of the last substep is not warned of before the next one.
        finite = np.isfinite(self.data.qpos).all() and np.isfinite(self.data.qvel).all()
        return not finite or any(self.data.warning[kind].number for kind in DIVERGENCE_WARNINGS)

    def close(self) -> None:
        self._env.close()
