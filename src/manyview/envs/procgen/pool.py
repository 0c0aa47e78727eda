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

from manyview.envs.contract import make_contract_error
from manyview.envs.suite import Levels
from manyview.envs.views import Image, View
from manyview.utils.resources import count_usable_cores

SCREEN = View("screen", 64, 64)
ACTIONS = spaces.Discrete(15)
NUM_LEVELS: dict[Levels, int] = {"train": 200, "test": 0}
"""Counted from level 0 on; 0 is EnvPool's word for all of them."""
NUM_SEEDS = 2**31
"""EnvPool keeps its seed in a signed 32-bit integer."""

GameIndices = NDArray[np.int32]
"""Numbers of games in the pool."""


class PoolState(NamedTuple):
    """What EnvPool says of N games after a step or a reset.

    Nothing writes into these arrays later: EnvPool gives its buffer away and takes a new one.
    """

    images: Image  # [N, 3, 64, 64]
    rewards: NDArray[np.float32]  # [N]
    done: NDArray[np.bool_]  # [N]
    timed_out: NDArray[np.bool_]  # [N], ended in the last step that an episode may have
    elapsed_steps: NDArray[np.int32]  # [N], in the episode
    level_seeds: NDArray[np.int32]  # [N]
    level_complete: NDArray[np.int32]  # [N], 0 or 1

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Ended by the clock. Who dies in the last step of all cannot be told from who runs out of time; who completes
        the level in it can.
        """
        return self.timed_out & ~self.level_complete.astype(np.bool_)

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return self.done & ~self.truncated


# EnvPool's names, in the order of `PoolState`.
STATE_KEYS = ("obs", "reward", "done", "trunc", "elapsed_step", "info:level_seed", "info:prev_level_complete")


class GamePool:
    """`num_envs` places for games of one kind, `standbys` of which wait for a place. Errors name the task."""

    def __init__(
        self, task: str, *, levels: Levels, num_envs: int, num_spares: int = 0, num_threads: int | None = None
    ) -> None:
        self.task = task
        self.num_envs = num_envs
        self.num_games = num_envs + num_spares
        self.num_threads = num_threads or min(num_envs, count_usable_cores())
        self.active_games: GameIndices = np.arange(num_envs, dtype=np.int32)
        """The game in each place."""
        self._num_levels = NUM_LEVELS[levels]
        self._games_to_reset: GameIndices = np.empty(0, np.int32)
        """Games without a place, to be reset in the next step."""
        self._spare_games: deque[tuple[int, Image, int]] = deque()
        """Games without a place that have been reset: number, first frame and level."""
        self._envpool = _import_envpool(task)
        self._pool: Any = None
        self._select_columns = itemgetter(*range(len(STATE_KEYS)))
        """Picks those of `STATE_KEYS` from what the pool returns."""

    def reset(self, seed: int | None) -> PoolState:
        """New episodes everywhere. With a seed, it and the actions decide everything from here on."""
        if seed is not None or self._pool is None:
            self._pool = self._make_pool(_draw_seed() if seed is None else seed % NUM_SEEDS)
            self._select_columns = itemgetter(*(self._pool._state_keys.index(key) for key in STATE_KEYS))
        games = np.arange(self.num_games, dtype=np.int32)
        self._spare_games.clear()
        self.active_games, self._games_to_reset = games[: self.num_envs], games[self.num_envs :]
        self._pool._reset(games)
        return self._receive()

    def step(self, actions: NDArray[np.int32]) -> PoolState:
        """What the actions [N] lead to. Places whose episode has ended must be renewed before the next step."""
        if self._pool is None:
            raise make_contract_error(self.task, "step", "a running episode", "a step before reset; call reset()")
        games = self.active_games
        if self._games_to_reset.size:
            games = np.concatenate((games, self._games_to_reset))
            actions = np.concatenate((actions, np.zeros_like(self._games_to_reset)))  # ignored
        # EnvPool's own `step` does the same, with conversions for games of other kinds that take as long as a game.
        self._pool._send([games, games, actions])
        return self._receive()

    def reset_games(self, indices: NDArray[np.intp], state: PoolState) -> None:
        """Begin new episodes in these places, and write their first frames and levels into `state`."""
        ended = self.active_games[indices]
        count = min(len(indices), len(self._spare_games))
        for index in indices[:count]:
            self.active_games[index], state.images[index], state.level_seeds[index] = self._spare_games.popleft()
        self._games_to_reset = ended[:count]
        if count < len(indices):  # seldom: nobody stands by for the others, which have to be waited for
            self._pool._reset(ended[count:])
            first = PoolState._make(self._select_columns(self._pool._recv()))
            state.images[indices[count:]], state.level_seeds[indices[count:]] = first.images, first.level_seeds

    def close(self) -> None:
        self._pool = None  # its threads end with it

    def _make_pool(self, seed: int) -> Any:
        game = self.task.removeprefix("procgen/")
        return self._envpool.make_gymnasium(
            f"{game.capitalize()}Easy-v0",
            num_envs=self.num_games,
            num_threads=self.num_threads,
            seed=seed,
            num_levels=self._num_levels,
            start_level=0,
        )

    def _receive(self) -> PoolState:
        """The games in their places; those that were reset beside them stand by from now on."""
        state = PoolState._make(self._select_columns(self._pool._recv()))
        if not self._games_to_reset.size:
            return state
        rows = slice(self.num_envs, None)
        self._spare_games.extend(
            zip(self._games_to_reset, state.images[rows].copy(), state.level_seeds[rows], strict=True)
        )
        self._games_to_reset = self._games_to_reset[:0]
        return PoolState._make([part[: self.num_envs] for part in state])


def _draw_seed() -> int:
    return int(np.random.default_rng().integers(NUM_SEEDS))


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
