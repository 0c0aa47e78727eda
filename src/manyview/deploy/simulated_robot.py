"""A robot for trying a control loop: a simulated task that runs in real time, with cameras that can fail."""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.envs.views import MASK, Image, Observation, get_views
from manyview.runtime.protocols import CapturedFrame
from manyview.runtime.runner_options import check_above_zero
from manyview.runtime.spec import ActionBounds

CameraFaultKind = Literal["freeze", "lag", "die", "hang"]
FAULT = re.compile(r"(?P<camera>[^:]+):(?P<kind>\w+)@(?P<start>\d+(\.\d+)?)s?(-(?P<end>\d+(\.\d+)?)s?)?")
READY_TIMEOUT_S = 120.0
"""Maximum time to make the environment."""
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class CameraFault:
    """Fault of a camera of a simulated robot from `start_s` to `end_s` after its first action.

    A camera with `freeze` repeats its last image, with `lag` returns each image `lag_s` late, with `die` raises an
    error, with `hang` does not return.
    """

    camera: str
    kind: CameraFaultKind
    start_s: float
    end_s: float = inf
    lag_s: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "CameraFault":
        """Return the fault of a text such as `front:freeze@5s` or `front:die@5s-8s`; `ValueError` otherwise."""
        match = FAULT.fullmatch(text)
        if match is None or match["kind"] not in get_args(CameraFaultKind):
            kinds = "|".join(get_args(CameraFaultKind))
            raise ValueError(f"invalid fault: expected CAMERA:{kinds}@STARTs or @STARTs-ENDs, got {text!r}")
        kind: Any = match["kind"]
        return cls(match["camera"], kind, float(match["start"]), inf if match["end"] is None else float(match["end"]))


class SimulatedRobot:
    """An environment that steps in real time, in a thread, with the newest action.

    An episode that ends is followed by the next one. Use it as the robot of `PolicyRunner.for_robot`.

    Args:
        make_env: Function that makes the environment of single frames; called in the thread, as renderers require.
        cameras: Names of the views that are cameras of the robot.
        vectors: Names of the state vectors.
        rate_hz: Steps per second.
        camera_hz: Images per second of each camera.
        faults: Faults of the cameras.
        bounds: Units of the policy's actions, if the environment takes them in [-1, 1]; None if both are the same.
        seed: Seed of the first episode and of the sensor noise.

    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Observation, Any]],
        *,
        cameras: Sequence[str],
        vectors: Sequence[str] = (),
        rate_hz: float = 50.0,
        camera_hz: float = 30.0,
        faults: Sequence[CameraFault] = (),
        bounds: ActionBounds | None = None,
        seed: int = 0,
    ) -> None:
        check_above_zero(rate_hz=rate_hz, camera_hz=camera_hz)
        for fault in faults:
            if fault.camera not in cameras:
                raise ValueError(f"unknown camera in a fault: expected one of {list(cameras)}, got {fault.camera!r}")
        self._make_env, self._period_s, self._seed = make_env, 1.0 / rate_hz, seed
        self._bounds = bounds
        self._action: Any = None
        self._error: BaseException | None = None
        self._ready, self._stopped = threading.Event(), threading.Event()
        self.first_action_s = inf
        """Time of the first action; faults count from it."""
        self.num_steps = 0
        self.observation: Observation = {}
        """Newest observation of the environment."""
        self.observed_s = -inf
        self.mask_columns: dict[str, int] = {}
        self.safe_action: Any = None
        """Action at which the robot stands still, in the policy's units."""
        self._thread = threading.Thread(target=self._simulate, name="simulated-robot", daemon=True)
        self._thread.start()
        if not self._ready.wait(READY_TIMEOUT_S):
            raise TimeoutError(f"simulated robot is not ready after {READY_TIMEOUT_S} s")
        if self._error is not None:
            raise self._error
        if missing := set(cameras) - self.mask_columns.keys():
            self.close()
            raise ValueError(f"unknown cameras: expected some of {list(self.mask_columns)}, got {sorted(missing)}")
        self.cameras = {
            name: SimulatedCamera(self, name, camera_hz, [f for f in faults if f.camera == name], seed + number)
            for number, name in enumerate(cameras)
        }
        self.vectors = {name: self._make_vector_reader(name) for name in vectors}

    def send_action(self, action: NDArray[Any]) -> None:
        """Set the action of the next steps."""
        self._raise_error()
        self.first_action_s = min(self.first_action_s, time.monotonic())
        self._action = action if self._bounds is None else self._bounds.normalize(action)

    def close(self) -> None:
        """Stop the simulation and release hanging cameras."""
        self._stopped.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    def wait_for_close(self, timeout_s: float | None = None) -> None:
        """Wait until the robot is closed, as a hanging camera does."""
        self._stopped.wait(timeout_s)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise RuntimeError(f"simulation failed: {type(self._error).__name__}: {self._error}") from self._error

    def _make_vector_reader(self, name: str) -> Callable[[], NDArray[Any]]:
        return lambda: self.observation[name]

    def _simulate(self) -> None:
        try:
            env = self._make_env()
            try:
                self._step_until_stopped(env)
            finally:
                env.close()
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    def _step_until_stopped(self, env: gym.Env[Observation, Any]) -> None:
        self.mask_columns = {view.name: column for column, view in enumerate(get_views(env))}
        self._action = _choose_idle_action(env.action_space)
        self.safe_action = self._action if self._bounds is None else self._bounds.denormalize(self._action)
        observation, _ = env.reset(seed=self._seed)
        next_s = time.monotonic()
        while not self._stopped.is_set():
            self.observation, self.observed_s = observation, time.monotonic()
            self._ready.set()
            next_s = max(next_s + self._period_s, time.monotonic())
            self._stopped.wait(next_s - time.monotonic())
            observation, _, terminated, truncated, _ = env.step(self._action)
            self.num_steps += 1
            if terminated or truncated:
                observation, _ = env.reset()


class SimulatedCamera:
    """A camera of a simulated robot: blocks until its next image is due, and has sensor noise.

    The noise is the lowest bit of the first row of pixels: no real camera gives the same bytes twice.
    """

    def __init__(self, robot: SimulatedRobot, name: str, hz: float, faults: Sequence[CameraFault], seed: int) -> None:
        self._robot, self._name, self._faults = robot, name, faults
        self._period_s, self._next_s = 1.0 / hz, time.monotonic()
        self._rng = np.random.default_rng(seed)
        lag_s = max((fault.lag_s for fault in faults if fault.kind == "lag"), default=0.0)
        self._history = deque[CapturedFrame](maxlen=int(lag_s * hz) + 1)

    def read(self) -> CapturedFrame | None:
        """Return the next image with its time of capture; None if the view is absent."""
        robot = self._robot
        self._next_s = max(self._next_s + self._period_s, time.monotonic())
        robot.wait_for_close(self._next_s - time.monotonic())
        fault = self._find_fault()
        if fault == "die":
            raise OSError(f"simulated camera {self._name!r} is dead")
        if fault == "hang":
            robot.wait_for_close()
            raise OSError(f"simulated camera {self._name!r} hung until the end")
        if fault == "freeze" and self._history:
            return CapturedFrame(self._history[-1].image, time.monotonic())
        observation, observed_s = robot.observation, robot.observed_s
        if not observation[MASK][robot.mask_columns[self._name]]:
            return None
        self._history.append(CapturedFrame(self._add_noise(observation[self._name]), observed_s))
        return self._history[0] if fault == "lag" else self._history[-1]

    def _find_fault(self) -> CameraFaultKind | None:
        elapsed_s = time.monotonic() - self._robot.first_action_s
        return next((fault.kind for fault in self._faults if fault.start_s <= elapsed_s < fault.end_s), None)

    def _add_noise(self, image: Image) -> Image:
        image = image.copy()
        image[0] ^= self._rng.integers(2, size=image[0].shape, dtype=np.uint8)
        return image


def _choose_idle_action(space: spaces.Space[Any]) -> Any:
    """Return zeros for continuous actions, or the first discrete action."""
    if isinstance(space, spaces.Discrete):
        return int(space.start)
    if isinstance(space, spaces.Box):
        return np.zeros(space.shape, np.float32).clip(space.low, space.high)
    raise ValueError(f"unsupported action space of a simulated robot: expected Box or Discrete, got {space}")
