"""Tasks whose environments hang, raise, end the process, never end an episode, or tell nonsense.

Each behaves well for its first `CALM_STEPS`; those that hang do so for as long as the file in `HANG` is there.
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

CALM_STEPS = 50
Step = tuple[Observation, Any, bool, bool, dict[str, Any]]


class Misbehaving(ViewWrapper):
    """Calls `misbehave` at every step after the calm ones, and after a step changes its `info` by `tell`."""

    def __init__(
        self,
        misbehave: Callable[[], None] = lambda: None,
        *,
        tell: dict[str, Any] | None = None,
        calm: int = CALM_STEPS,
    ) -> None:
        super().__init__(make(os.environ.get("TOY", "toy/hidden_goal_continuous"), frame_stack=1))
        self._misbehave, self._tell, self._calm, self._steps = misbehave, tell or {}, calm, 0

    def step(self, action: Any) -> Step:
        self._steps += 1
        if self._steps > self._calm:
            self._misbehave()
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, **self._tell}


def _hangs() -> bool:
    """Whether to hang; a file says that it has begun."""
    hang = Path(os.environ["HANG"])
    if not hang.exists():
        return False
    hang.with_name("begun").touch()
    return True


def _sleep() -> None:
    while _hangs():
        sleep(0.05)


def _wait_in_c() -> None:
    """In C code that gives up the GIL and that no signal interrupts: a mutex that is locked twice."""
    if _hangs():
        mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)


def _keep_the_gil() -> None:
    """Python's own C code, which runs signal handlers now and then but no other thread."""
    if _hangs():
        re.match("(a+)+$", "a" * 60 + "b")


def _keep_the_gil_deaf() -> None:
    """C code that runs nothing else at all."""
    if _hangs():
        ctypes.PyDLL(None).sleep(60)


def _exit() -> None:
    sys.exit(0)


def _raise() -> None:
    raise ValueError("joint 3 is \x1b[31mout of bounds\nTraceback")


def _stop_generating() -> None:
    raise GeneratorExit


def sleeps() -> Misbehaving:
    return Misbehaving(_sleep)


def sleeps_at_once() -> Misbehaving:
    return Misbehaving(_sleep, calm=0)


def waits_in_c() -> Misbehaving:
    return Misbehaving(_wait_in_c)


def keeps_the_gil() -> Misbehaving:
    return Misbehaving(_keep_the_gil)


def keeps_the_gil_deaf() -> Misbehaving:
    return Misbehaving(_keep_the_gil_deaf)


class HangsAtReset(Misbehaving):
    def reset(self, **_: Any) -> Any:
        _wait_in_c()


class HangsAtClose(Misbehaving):
    def close(self) -> None:
        _wait_in_c()


class ExitsAtReset(Misbehaving):
    def reset(self, **_: Any) -> Any:
        sys.exit(0)


def exits() -> Misbehaving:
    return Misbehaving(_exit)


def raises() -> Misbehaving:
    return Misbehaving(_raise)


def stops_generating() -> Misbehaving:
    return Misbehaving(_stop_generating)


def exits_when_made() -> Misbehaving:
    sys.exit(0)


def raises_when_made() -> Misbehaving:
    raise KeyError("no licence")


class NeverEnds(Misbehaving):
    """Every step is like the first."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._first, info = self.env.reset(seed=seed, options=options)
        return self._first, info

    def step(self, action: Any) -> Step:  # noqa: ARG002
        return self._first, 1.0, False, False, {}


def counts_frames_by_numpy() -> Misbehaving:
    return Misbehaving(tell={"frames": np.int64(2), "episode": {"r": np.zeros(3), "l": 4}})


def counts_frames_wrong() -> Misbehaving:
    return Misbehaving(tell={"frames": 10**30})
