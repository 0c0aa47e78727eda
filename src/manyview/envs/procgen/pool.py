"""Games in one EnvPool, without its autoreset.

EnvPool begins the next episode in the step after an end: it ignores that step's action and returns the first frame with
reward 0, which looks like a transition and is none. Here a game that has ended is reset by its number instead, before
anything is returned, so that no such step exists.
"""

import os
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.envs.layers.boundary import refuse
from manyview.envs.suite import Levels
from manyview.envs.views import Image, View

SCREEN = View("screen", 64, 64)
ACTIONS = spaces.Discrete(15)
NUM_LEVELS: dict[Levels, int] = {"train": 200, "test": 0}
"""Counted from level 0 on; 0 is EnvPool's word for all of them."""
SEEDS = 2**31
"""EnvPool keeps its seed in a signed 32-bit integer."""


class Frames(NamedTuple):
    """What games show. Nothing writes into these arrays later: EnvPool gives its buffer away and takes a new one."""

    images: Image  # [N, 3, 64, 64]
    level_seeds: NDArray[np.int32]  # [N]


class Step(NamedTuple):
    frames: Frames
    rewards: NDArray[np.float64]  # [N]
    terminated: NDArray[np.bool_]  # [N]
    truncated: NDArray[np.bool_]  # [N]
    level_complete: NDArray[np.bool_]  # [N]


class Pool:
    """`num_envs` games of one kind. Its errors name the task."""

    def __init__(self, task: str, *, levels: Levels, num_envs: int, num_threads: int | None = None) -> None:
        self.task = task
        self.num_envs = num_envs
        self.num_threads = num_threads or min(num_envs, usable_cores())
        self._num_levels = NUM_LEVELS[levels]
        self._games = np.arange(num_envs, dtype=np.int32)
        self._envpool = _import_envpool(task)
        self._pool: Any = None

    def begin(self, seed: int | None) -> Frames:
        """New episodes in all games. With a seed, it and the actions decide everything from here on."""
        if seed is not None or self._pool is None:
            self._pool = self._made(_random_seed() if seed is None else seed % SEEDS)
        self.start_reset(self._games)
        return self.finish_reset()

    def start_reset(self, games: NDArray[np.int32]) -> None:
        """Set these games to a new episode; the threads begin, and `finish_reset` waits for them."""
        self._pool._reset(games)

    def finish_reset(self) -> Frames:
        """The first frames of the games that were reset, in their order."""
        return _frames(self._received())

    def step(self, actions: NDArray[np.int32]) -> Step:
        if self._pool is None:
            raise refuse(self.task, "step", "a running episode", "a step before reset; call reset()")
        # What EnvPool's own `step` does around this and `_recv`, for games of several players and for dicts of
        # actions, would take as long as half a game's step.
        self._pool._send([self._games, self._games, actions])
        state = self._received()
        rewards = state["reward"].astype(np.float64)
        if not np.isfinite(rewards).all():
            raise refuse(self.task, "reward", "finite numbers", str(rewards))
        # EnvPool says `trunc` of every episode that ends when its time is up. One whose level is complete in that very
        # step has ended by itself. A player who dies in that very step cannot be told from one who runs out of time.
        complete = state["info:prev_level_complete"] != 0
        truncated = state["trunc"] & ~complete
        return Step(_frames(state), rewards, state["done"] & ~truncated, truncated, complete)

    def close(self) -> None:
        self._pool = None  # its threads end with it

    def _made(self, seed: int) -> Any:
        game = self.task.removeprefix("procgen/")
        return self._envpool.make_gymnasium(
            f"{game.capitalize()}Easy-v0",
            num_envs=self.num_envs,
            num_threads=self.num_threads,
            seed=seed,
            num_levels=self._num_levels,
            start_level=0,
        )

    def _received(self) -> dict[str, NDArray[Any]]:
        return dict(zip(self._pool._state_keys, self._pool._recv(), strict=True))


def usable_cores() -> int:
    """The cores this process may run on, which on a shared machine are fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _frames(state: dict[str, NDArray[Any]]) -> Frames:
    return Frames(state["obs"], state["info:level_seed"])


def _random_seed() -> int:
    return int(np.random.default_rng().integers(SEEDS))


def _import_envpool(task: str) -> Any:
    try:
        import envpool
        from envpool.procgen import ProcgenEnvSpec  # noqa: F401  here, Qt is loaded
    except ImportError as error:
        if "Qt" not in str(error):
            raise
        cause = error.__cause__ or error
        raise ImportError(
            f"{task} is drawn with Qt 5, which cannot be loaded: apt-get install libqt5gui5 ({cause})"
        ) from error
    return envpool
