"""Base class of the manipulation suites: success in `info`, and divergence of the physics."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import numpy as np

from manyview.envs.simulated import SimulatedEnv, StepResult
from manyview.envs.views import State
from manyview.utils.seeding import get_rng_state, restore_rng


class PhysicsError(RuntimeError):
    """The simulation diverged."""


class Simulator(Protocol):
    """A simulation whose episodes depend only on the generator given at their reset."""

    @property
    def model(self) -> Any:
        """MuJoCo's current model."""

    @property
    def data(self) -> Any:
        """MuJoCo's current data."""

    def reset(self, rng: np.random.Generator) -> None:
        """Start an episode."""

    def step(self, action: Any) -> tuple[float, bool, bool]:
        """Take a simulator step and return the reward, success and truncation."""

    def read_vectors(self) -> Mapping[str, Any]:
        """Return all state vectors on offer, of the current state."""

    def close(self) -> None:
        """Close the simulator."""


class ManipulationEnv(SimulatedEnv):
    """Base class of environments of a `Simulator`, which reports success.

    The reward is the simulator's, summed over the action repeat. `info["success"]` is whether the task succeeded in any
    of these frames. Success does not end the episode.
    """

    default_info: ClassVar[dict[str, Any]] = {"success": False}
    _simulator: Simulator

    @property
    def physics_error_types(self) -> tuple[type[Exception], ...]:
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
            with detect_divergence(self._simulator.data):
                reward, success, last = self._simulator.step(action)
            total, succeeded, frames = total + reward, succeeded or success, frames + 1
            if last:
                break
        return StepResult(total, False, last, frames, {"success": succeeded})

    def read_vectors(self) -> Mapping[str, Any]:
        return self._simulator.read_vectors()

    def get_model_data(self) -> tuple[Any, Any]:
        return self._simulator.model, self._simulator.data

    def close(self) -> None:
        super().close()
        self._simulator.close()


@contextmanager
def detect_divergence(data: Any) -> Iterator[None]:
    """Raise `PhysicsError` if the simulation of `data` diverges in the block."""
    try:
        yield
    except Exception as error:
        # The reward of an invalid state can raise many exceptions.
        if has_diverged(data):
            raise PhysicsError(f"the simulation diverged: {error}") from error
        raise
    if has_diverged(data):
        raise PhysicsError("the simulation diverged")


def has_diverged(data: Any) -> bool:
    """Return whether the state is not finite, or MuJoCo has silently reset it in mid-episode."""
    from mujoco import mjtWarning

    # MuJoCo warns about an invalid state of the last substep only in the next one.
    if not (np.isfinite(data.qpos).all() and np.isfinite(data.qvel).all()):
        return True
    kinds = (
        mjtWarning.mjWARN_INERTIA,
        mjtWarning.mjWARN_BADQPOS,
        mjtWarning.mjWARN_BADQVEL,
        mjtWarning.mjWARN_BADQACC,
        mjtWarning.mjWARN_BADCTRL,
    )
    return any(data.warning[kind].number for kind in kinds)
