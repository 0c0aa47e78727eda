"""Environments that hang, raise, exit, never end or report invalid `info`.

Faults start after `NORMAL_STEPS`; hanging environments hang while the file named by `HANG` exists.
"""

import ctypes
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np

from manyview.envs import make
from manyview.envs.views import Observation, ViewWrapper

NORMAL_STEPS = 50
Step = tuple[Observation, Any, bool, bool, dict[str, Any]]


class MisbehavingEnv(ViewWrapper):
    """Environment that calls `fault` before every step after `normal_steps`.

    `info_changes` update the `info` of every step.
    """

    def __init__(
        self,
        fault: Callable[[], None] = lambda: None,
        *,
        info_changes: dict[str, Any] | None = None,
        normal_steps: int = NORMAL_STEPS,
    ) -> None:
        super().__init__(make(os.environ.get("TOY", "toy/hidden_goal_continuous"), frame_stack=1))
        self._fault, self._info_changes, self._normal_steps, self._steps = fault, info_changes or {}, normal_steps, 0

    def step(self, action: Any) -> Step:
        self._steps += 1
        if self._steps > self._normal_steps:
            self._fault()
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, **self._info_changes}


def _should_hang() -> bool:
    """Return whether to hang; if so, touch the file `begun` beside that of `HANG`."""
    hang = Path(os.environ["HANG"])
    if not hang.exists():
        return False
    hang.with_name("begun").touch()
    return True


def _hang_in_sleep() -> None:
    while _should_hang():
        sleep(0.05)


def _hang_in_c() -> None:
    """Deadlock on a mutex in C code, without the GIL; signals do not interrupt it."""
    if _should_hang():
        mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)


def _hold_gil() -> None:
    """Hold the GIL in C code that runs signal handlers, but no other thread."""
    if _should_hang():
        re.match("(a+)+$", "a" * 60 + "b")


def _hold_gil_without_signals() -> None:
    """Hold the GIL in C code that runs neither signal handlers nor other threads."""
    if _should_hang():
        ctypes.PyDLL(None).sleep(60)


def _exit_process() -> None:
    sys.exit(0)


def _raise_error() -> None:
    raise ValueError("joint 3 is \x1b[31mout of bounds\nTraceback")


def _raise_generator_exit() -> None:
    raise GeneratorExit


def make_env_hanging_in_sleep() -> MisbehavingEnv:
    return MisbehavingEnv(_hang_in_sleep)


def make_env_hanging_from_start() -> MisbehavingEnv:
    return MisbehavingEnv(_hang_in_sleep, normal_steps=0)


def make_env_hanging_in_c() -> MisbehavingEnv:
    return MisbehavingEnv(_hang_in_c)


def make_env_holding_gil() -> MisbehavingEnv:
    return MisbehavingEnv(_hold_gil)


def make_env_holding_gil_without_signals() -> MisbehavingEnv:
    return MisbehavingEnv(_hold_gil_without_signals)


class HangingResetEnv(MisbehavingEnv):
    def reset(self, **_: Any) -> Any:
        _hang_in_c()


class HangingCloseEnv(MisbehavingEnv):
    def close(self) -> None:
        _hang_in_c()


class ExitingResetEnv(MisbehavingEnv):
    def reset(self, **_: Any) -> Any:
        sys.exit(0)


def make_exiting_env() -> MisbehavingEnv:
    return MisbehavingEnv(_exit_process)


def make_raising_env() -> MisbehavingEnv:
    return MisbehavingEnv(_raise_error)


def make_env_raising_generator_exit() -> MisbehavingEnv:
    return MisbehavingEnv(_raise_generator_exit)


def exit_on_construction() -> MisbehavingEnv:
    sys.exit(0)


def raise_on_construction() -> MisbehavingEnv:
    raise KeyError("no licence")


class EndlessEnv(MisbehavingEnv):
    """Environment whose episode never ends; all its observations are the first one."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._first_observation, info = self.env.reset(seed=seed, options=options)
        return self._first_observation, info

    def step(self, action: Any) -> Step:  # noqa: ARG002
        return self._first_observation, 1.0, False, False, {}


def make_env_with_numpy_frames() -> MisbehavingEnv:
    return MisbehavingEnv(info_changes={"frames": np.int64(2), "episode": {"r": np.zeros(3), "l": 4}})


def make_env_with_invalid_frames() -> MisbehavingEnv:
    return MisbehavingEnv(info_changes={"frames": 10**30})
