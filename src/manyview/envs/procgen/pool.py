"""A pool of games in EnvPool, without its autoreset.

EnvPool starts the next episode in the step after an end: it ignores that step's action and returns the first frame with
reward 0, which looks like a transition but is not one. `GamePool` hides these steps. It runs a few spare games that are
already reset. When a game ends, a spare game replaces it immediately; the ended game is reset during the next step of
the others, at the same cost as in bare EnvPool, and becomes a spare.
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
"""Number of levels, starting at level 0; 0 means all levels in EnvPool."""
NUM_SEEDS = 2**31
"""Number of seeds: EnvPool stores its seed in a signed 32-bit integer."""
STATE_KEYS = ("obs", "reward", "done", "trunc", "elapsed_step", "info:level_seed", "info:prev_level_complete")
"""EnvPool's names of the fields of `PoolState`, in the same order."""

GameIndices = NDArray[np.int32]
"""Indices of games in the pool."""


class PoolState(NamedTuple):
    """State of N games after a step or a reset.

    EnvPool does not write into these arrays later: it allocates a new buffer for each result.
    """

    images: Image  # [N, 3, 64, 64]
    rewards: NDArray[np.float32]  # [N]
    done: NDArray[np.bool_]  # [N]
    timed_out: NDArray[np.bool_]  # [N], ended at the last step within the time limit
    elapsed_steps: NDArray[np.int32]  # [N], since the start of the episode
    level_seeds: NDArray[np.int32]  # [N]
    level_complete: NDArray[np.int32]  # [N], 0 or 1

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Games that ended by the time limit, [N].

        A death at the last step within the limit is indistinguishable from a timeout and counts as truncated; a level
        completed at that step does not.
        """
        return self.timed_out & ~self.level_complete.astype(np.bool_)

    @property
    def terminated(self) -> NDArray[np.bool_]:
        """Games that ended before the time limit, or by completing the level, [N]."""
        return self.done & ~self.truncated


class GamePool:
    """Slots with `num_envs` active games and `num_spares` games to replace ended ones.

    `task` identifies the pool in errors.
    """

    def __init__(
        self, task: str, *, levels: Levels, num_envs: int, num_spares: int = 0, num_threads: int | None = None
    ) -> None:
        self.task = task
        self.num_envs = num_envs
        self.num_games = num_envs + num_spares
        self.num_threads = num_threads or min(num_envs, count_usable_cores())
        self.active_games: GameIndices = np.arange(num_envs, dtype=np.int32)
        """The game in each slot."""
        self._num_levels = NUM_LEVELS[levels]
        self._games_to_reset: GameIndices = np.empty(0, np.int32)
        """Ended games without a slot, to be reset in the next step."""
        self._spare_games: deque[tuple[int, Image, int]] = deque()
        """Reset games without a slot: index, first frame and level seed."""
        self._envpool = _import_envpool(task)
        self._pool: Any = None
        self._select_columns = itemgetter(*range(len(STATE_KEYS)))
        """Selects the columns of `STATE_KEYS` from a result of the pool."""

    def reset(self, seed: int | None) -> PoolState:
        """Start new episodes in all slots.

        With a seed, all later results depend only on it and the actions.
        """
        if seed is not None or self._pool is None:
            self._pool = self._make_pool(_draw_seed() if seed is None else seed % NUM_SEEDS)
            self._select_columns = itemgetter(*(self._pool._state_keys.index(key) for key in STATE_KEYS))
        games = np.arange(self.num_games, dtype=np.int32)
        self._spare_games.clear()
        self.active_games, self._games_to_reset = games[: self.num_envs], games[self.num_envs :]
        self._pool._reset(games)
        return self._receive()

    def step(self, actions: NDArray[np.int32]) -> PoolState:
        """Step the games in all slots with actions [N].

        Call `reset_games` for ended games before the next step.
        """
        if self._pool is None:
            raise make_contract_error(self.task, "step", "a running episode", "a step before reset. Call reset().")
        games = self.active_games
        if self._games_to_reset.size:
            games = np.concatenate((games, self._games_to_reset))
            actions = np.concatenate((actions, np.zeros_like(self._games_to_reset)))  # ignored
        # EnvPool's `step` does the same, with generic conversions that take as long as stepping a game.
        self._pool._send([games, games, actions])
        return self._receive()

    def reset_games(self, indices: NDArray[np.intp], state: PoolState) -> None:
        """Start new episodes in the slots `indices`.

        Their first frames and level seeds are written into `state`.
        """
        ended = self.active_games[indices]
        count = min(len(indices), len(self._spare_games))
        for index in indices[:count]:
            self.active_games[index], state.images[index], state.level_seeds[index] = self._spare_games.popleft()
        self._games_to_reset = ended[:count]
        if count < len(indices):  # rare: too few spare games, so wait for the others to reset
            self._pool._reset(ended[count:])
            first = PoolState._make(self._select_columns(self._pool._recv()))
            state.images[indices[count:]], state.level_seeds[indices[count:]] = first.images, first.level_seeds

    def close(self) -> None:
        """Release the pool."""
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
        """Return the state of the active games; games that were reset become spares."""
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
        from envpool.procgen import ProcgenEnvSpec  # noqa: F401  loads Qt
    except ImportError as error:
        if "Qt" not in str(error):
            raise
        cause = error.__cause__ or error
        raise ImportError(
            f"{task} renders with Qt 5, which cannot be loaded ({cause}). Install it: apt-get install libqt5gui5"
        ) from error
    return envpool
