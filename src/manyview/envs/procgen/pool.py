"""Games in one EnvPool, without its autoreset.

EnvPool begins the next episode in the step after an end: it ignores that step's action and returns the first frame with
reward 0, which looks like a transition and is none. Nobody sees such steps here. A few more games than asked for stand
by with their first frame drawn. One of them takes the place of a game that has ended, at once; the ended game is reset
while the others make their next step, as in bare EnvPool and at the same cost, and stands by in its turn.
"""

from collections import deque
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.envs.cores import usable_cores
from manyview.envs.layers.boundary import refuse
from manyview.envs.suite import Levels
from manyview.envs.views import Image, View

SCREEN = View("screen", 64, 64)
ACTIONS = spaces.Discrete(15)
NUM_LEVELS: dict[Levels, int] = {"train": 200, "test": 0}
"""Counted from level 0 on; 0 is EnvPool's word for all of them."""
SEEDS = 2**31
"""EnvPool keeps its seed in a signed 32-bit integer."""

Games = NDArray[np.int32]
"""Numbers of games in the pool."""


class PoolState(NamedTuple):
    """What EnvPool says of N games after a step or a reset.

    Nothing writes into these arrays later: EnvPool gives its buffer away and takes a new one.
    """

    images: Image  # [N, 3, 64, 64]
    rewards: NDArray[np.float32]  # [N]
    ended: NDArray[np.bool_]  # [N]
    out_of_time: NDArray[np.bool_]  # [N], ended in the last step that an episode may have
    elapsed_steps: NDArray[np.int32]  # [N], in the episode
    level_seeds: NDArray[np.int32]  # [N]
    level_complete: NDArray[np.int32]  # [N], 0 or 1

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Ended by the clock. Who dies in the last step of all cannot be told from who runs out of time; who completes
        the level in it can.
        """
        return self.out_of_time & ~self.level_complete.astype(np.bool_)

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return self.ended & ~self.truncated


# EnvPool's names, in the order of `PoolState`.
KEYS = ("obs", "reward", "done", "trunc", "elapsed_step", "info:level_seed", "info:prev_level_complete")


class Pool:
    """`num_envs` places for games of one kind, `standbys` of which wait for a place. Errors name the task."""

    def __init__(
        self, task: str, *, levels: Levels, num_envs: int, standbys: int = 0, num_threads: int | None = None
    ) -> None:
        self.task = task
        self.num_envs = num_envs
        self.num_games = num_envs + standbys
        self.num_threads = num_threads or min(num_envs, usable_cores())
        self.playing: Games = np.arange(num_envs, dtype=np.int32)
        """The game in each place."""
        self._num_levels = NUM_LEVELS[levels]
        self._ended: Games = np.empty(0, np.int32)
        """Games without a place, to be reset in the next step."""
        self._standing_by: deque[tuple[int, Image, int]] = deque()
        """Games without a place that have been reset: number, first frame and level."""
        self._envpool = _import_envpool(task)
        self._pool: Any = None
        self._columns = itemgetter(*range(len(KEYS)))
        """Picks those of `KEYS` from what the pool returns."""

    def begin(self, seed: int | None) -> PoolState:
        """New episodes everywhere. With a seed, it and the actions decide everything from here on."""
        if seed is not None or self._pool is None:
            self._pool = self._made(_random_seed() if seed is None else seed % SEEDS)
            self._columns = itemgetter(*(self._pool._state_keys.index(key) for key in KEYS))
        games = np.arange(self.num_games, dtype=np.int32)
        self._standing_by.clear()
        self.playing, self._ended = games[: self.num_envs], games[self.num_envs :]
        self._pool._reset(games)
        return self._received()

    def step(self, actions: NDArray[np.int32]) -> PoolState:
        """What the actions [N] lead to. Places whose episode has ended must be renewed before the next step."""
        if self._pool is None:
            raise refuse(self.task, "step", "a running episode", "a step before reset; call reset()")
        games = self.playing
        if self._ended.size:
            games = np.concatenate((games, self._ended))
            actions = np.concatenate((actions, np.zeros_like(self._ended)))  # ignored
        # EnvPool's own `step` does the same, with conversions for games of other kinds that take as long as a game.
        self._pool._send([games, games, actions])
        return self._received()

    def renew(self, places: NDArray[np.intp], state: PoolState) -> None:
        """Begin new episodes in these places, and write their first frames and levels into `state`."""
        ended = self.playing[places]
        count = min(len(places), len(self._standing_by))
        for place in places[:count]:
            self.playing[place], state.images[place], state.level_seeds[place] = self._standing_by.popleft()
        self._ended = ended[:count]
        if count < len(places):  # seldom: nobody stands by for the others, which have to be waited for
            self._pool._reset(ended[count:])
            first = PoolState._make(self._columns(self._pool._recv()))
            state.images[places[count:]], state.level_seeds[places[count:]] = first.images, first.level_seeds

    def close(self) -> None:
        self._pool = None  # its threads end with it

    def _made(self, seed: int) -> Any:
        game = self.task.removeprefix("procgen/")
        return self._envpool.make_gymnasium(
            f"{game.capitalize()}Easy-v0",
            num_envs=self.num_games,
            num_threads=self.num_threads,
            seed=seed,
            num_levels=self._num_levels,
            start_level=0,
        )

    def _received(self) -> PoolState:
        """The games in their places; those that were reset beside them stand by from now on."""
        state = PoolState._make(self._columns(self._pool._recv()))
        if not self._ended.size:
            return state
        rows = slice(self.num_envs, None)
        self._standing_by.extend(zip(self._ended, state.images[rows].copy(), state.level_seeds[rows], strict=True))
        self._ended = self._ended[:0]
        return PoolState._make([part[: self.num_envs] for part in state])


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
