"""Procgen as a vector environment at EnvPool's speed, and as a single environment.

In contrast to EnvPool's autoreset, every step of every game is a real transition.
"""

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from manyview.envs.contract import describe, make_contract_error
from manyview.envs.procgen.pool import ACTIONS, SCREEN, GamePool, PoolState
from manyview.envs.suite import Levels
from manyview.envs.views import MASK, Image, MultiViewEnv, NotRestorable, Observation, State, make_observation_space

MAX_ACTION = int(ACTIONS.n) - 1
SNAPSHOT_ERROR = "EnvPool cannot save or restore the state of a game. Start a new episode with reset(seed=...)."

Info = dict[str, Any]


class ProcgenVector(VectorEnv[Observation, NDArray[Any], NDArray[Any]]):
    """Vector environment of `num_envs` games in one EnvPool.

    A game that ends starts its next episode in the same step, as in Gymnasium's vector environments with
    `AutoresetMode.SAME_STEP`: the observation is the first of the new episode, `info["final_obs"]` the last of the old
    one, and `info["final_info"]["episode"]` has the unscaled return, the steps and the frames of the old one.

    Args:
        task: `"procgen/bigfish"`, ...
        num_envs: Number of games.
        levels: The 200 `"train"` levels, or `"test"` for all levels.
        frame_stack: Number of frames along the channels, oldest first. With 1, the paper's value, nothing is copied:
            `screen` is EnvPool's memory, transposed to height, width, channels.
        num_threads: Threads of EnvPool; by default one per usable core, at most one per game.

    """

    def __init__(
        self,
        task: str,
        num_envs: int,
        *,
        levels: Levels = "train",
        frame_stack: int = 1,
        num_threads: int | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.frame_stack = frame_stack
        self.single_observation_space = make_observation_space([SCREEN], frame_stack=frame_stack)
        self.single_action_space = ACTIONS
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(ACTIONS, num_envs)
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.SAME_STEP, "views": (SCREEN,), "task": task}
        num_spares = max(1, num_envs // 8)  # far more than end in one step, except at a common time limit
        self._pool = GamePool(task, levels=levels, num_envs=num_envs, num_spares=num_spares, num_threads=num_threads)
        self._stacks = np.empty(0, np.uint8)  # [N, 3 * frame_stack, 64, 64], the last observation
        self._mask = np.ones((num_envs, 1), np.int8)
        self._returns = np.zeros(num_envs)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        if self.closed:
            raise make_contract_error(
                self._pool.task, "reset", "an open environment", "a call after close(). Make a new environment."
            )
        if options:
            raise make_contract_error(self._pool.task, "reset options", "none", describe(options))
        super().reset(seed=seed)
        state = self._pool.reset(seed)
        self._returns[:] = 0
        self._stacks = self._fill_stack(state.images)
        return self._build_observation(), {"level_seed": state.level_seeds}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Observation, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Info]:
        state = self._pool.step(self._validate_actions(actions))
        rewards = state.rewards.astype(np.float64)
        if np.count_nonzero(np.isfinite(rewards)) < self.num_envs:
            raise make_contract_error(self._pool.task, "reward", "finite numbers", str(rewards))
        self._returns += rewards
        self._stacks = self._append_frame(state.images)
        info: Info = {"level_seed": state.level_seeds}
        indices = state.done.nonzero()[0]
        if not indices.size:
            return self._build_observation(), rewards, state.done, state.timed_out, info
        info |= self._build_final_info(state, indices)
        self._pool.reset_games(indices, state)
        if self.frame_stack > 1:
            self._stacks[indices] = self._fill_stack(state.images[indices])
        self._returns[indices] = 0
        return self._build_observation(), rewards, state.terminated, state.truncated, info

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002  Gymnasium's signature
        self._pool.close()

    def _build_final_info(self, state: PoolState, indices: NDArray[np.intp]) -> Info:
        """Return `final_obs` and `final_info` of the ended episodes, in the format of Gymnasium."""
        observations = np.full(self.num_envs, None, object)
        for index in indices:
            # A copy: this row of the stacks is overwritten with the next episode.
            image = self._stacks[index].copy().transpose(1, 2, 0)
            observations[index] = {SCREEN.name: image, MASK: np.ones(1, np.int8)}
        done = state.done
        steps = np.where(done, state.elapsed_steps, 0)
        # An action takes one frame of the game.
        episode = {"return": np.where(done, self._returns, 0.0), "steps": steps, "frames": steps.copy()}
        final_info = {
            "level_seed": np.where(done, state.level_seeds, 0),
            "level_complete": state.level_complete != 0,
            "episode": _add_masks(episode, done),
        }
        return _add_masks({"final_obs": observations, "final_info": _add_masks(final_info, done)}, done)

    def _fill_stack(self, images: Image) -> Image:
        """Repeat the first frame of an episode in place of the older ones."""
        return images if self.frame_stack == 1 else np.tile(images, (1, self.frame_stack, 1, 1))

    def _append_frame(self, images: Image) -> Image:
        return images if self.frame_stack == 1 else np.concatenate([self._stacks[:, SCREEN.channels :], images], 1)

    def _build_observation(self) -> Observation:
        # A stack is copied: the next one is built from it, and the caller may write into the observation.
        stacks = self._stacks if self.frame_stack == 1 else self._stacks.copy()
        return {SCREEN.name: stacks.transpose(0, 2, 3, 1), MASK: self._mask.copy()}

    def _validate_actions(self, actions: Any) -> NDArray[np.int32]:
        value = np.asarray(actions)
        if value.shape != (self.num_envs,) or value.dtype.kind not in "iu":
            expected = f"{self.num_envs} integers from 0 to {MAX_ACTION}"
            raise make_contract_error(self._pool.task, "action", expected, describe(actions))
        wrong = (value < 0) | (value > MAX_ACTION)
        if np.count_nonzero(wrong):
            index = int(wrong.argmax())
            expected = f"integers from 0 to {MAX_ACTION}"
            raise make_contract_error(self._pool.task, "action", expected, f"{value[index]} for environment {index}")
        return value.astype(np.int32, copy=False)


class Procgen(MultiViewEnv):
    """A single game in a separate pool.

    A reset with a seed recreates the pool and with it the sequence of levels. `info` has the `level_seed`, and at a
    step `level_complete`: whether this step completed the level.
    """

    def __init__(self, task: str, *, levels: Levels = "train") -> None:
        super().__init__([SCREEN], ACTIONS)
        self._pool = GamePool(task, levels=levels, num_envs=1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._unpack_state(self._pool.reset(seed))

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        state = self._pool.step(np.array([action], np.int32))
        observation, info = self._unpack_state(state)
        info["level_complete"] = bool(state.level_complete[0])
        return observation, float(state.rewards[0]), bool(state.terminated[0]), bool(state.truncated[0]), info

    def close(self) -> None:
        self._pool.close()

    def snapshot(self) -> State:
        raise NotRestorable(f"{self._pool.task}: {SNAPSHOT_ERROR}")

    def restore(self, state: State) -> Observation:  # noqa: ARG002
        raise NotRestorable(f"{self._pool.task}: {SNAPSHOT_ERROR}")

    def _unpack_state(self, state: PoolState) -> tuple[Observation, dict[str, Any]]:
        image = state.images[0].transpose(1, 2, 0)
        return self.observe({SCREEN.name: image}), {"level_seed": int(state.level_seeds[0])}


def _add_masks(info: Info, mask: NDArray[np.bool_]) -> Info:
    """Add to every entry `name` the mask `_name` of the environments that have it."""
    return {**info, **{f"_{name}": mask for name in info}}
