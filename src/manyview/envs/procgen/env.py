"""Many Procgen games at once, at EnvPool's speed, with every step of every game a true transition."""

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

Info = dict[str, Any]


class ProcgenVector(VectorEnv[Observation, NDArray[Any], NDArray[Any]]):
    """`num_envs` games in one EnvPool with threads of its own.

    An ended game begins its next episode in the same step, as in Gymnasium's vector environments with
    `AutoresetMode.SAME_STEP`: the observation is the new episode's first, the old one's last is `info["final_obs"]`,
    and its sums, before anything scales rewards, are `info["final_info"]["episode"]`.

    Args:
        task: `"procgen/bigfish"`, ...
        num_envs: how many games.
        levels: the 200 `"train"` levels, or `"test"` on all.
        frame_stack: how many frames lie along the channels, oldest first. With one, which is the paper's, nothing is
            copied: `screen` is EnvPool's own memory, seen as height, width, channels.
        num_threads: of EnvPool; by default as many as there are cores for this process, at most one a game.

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
        num_spares = max(1, num_envs // 8)  # far more than end in one step, but for a common end of time
        self._pool = GamePool(task, levels=levels, num_envs=num_envs, num_spares=num_spares, num_threads=num_threads)
        self._stacks = np.empty(0, np.uint8)  # [N, 3 * frame_stack, 64, 64], what was shown last
        self._mask = np.ones((num_envs, 1), np.int8)
        self._returns = np.zeros(num_envs)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        if self.closed:
            raise make_contract_error(
                self._pool.task, "reset", "an open environment", "a call after close(); make another"
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
        """What the episodes leave behind, in the form that Gymnasium's own vector environments give it."""
        observations = np.full(self.num_envs, None, object)
        for index in indices:
            # A copy: this row of the stacks is about to become the next episode's.
            image = self._stacks[index].copy().transpose(1, 2, 0)
            observations[index] = {SCREEN.name: image, MASK: np.ones(1, np.int8)}
        done = state.done
        steps = np.where(done, state.elapsed_steps, 0)
        # An action lasts one frame of the game.
        episode = {"return": np.where(done, self._returns, 0.0), "steps": steps, "frames": steps.copy()}
        final_info = {
            "level_seed": np.where(done, state.level_seeds, 0),
            "level_complete": state.level_complete != 0,
            "episode": _add_masks(episode, done),
        }
        return _add_masks({"final_obs": observations, "final_info": _add_masks(final_info, done)}, done)

    def _fill_stack(self, images: Image) -> Image:
        """A first frame stands in for the older ones."""
        return images if self.frame_stack == 1 else np.tile(images, (1, self.frame_stack, 1, 1))

    def _append_frame(self, images: Image) -> Image:
        return images if self.frame_stack == 1 else np.concatenate([self._stacks[:, SCREEN.channels :], images], 1)

    def _build_observation(self) -> Observation:
        # Of a stack a copy: the next one is built on it, and the caller may write into what is shown.
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


def _add_masks(info: Info, mask: NDArray[np.bool_]) -> Info:
    """Every entry with the mask of the environments that have it, under its name with `_` in front."""
    return {**info, **{f"_{name}": mask for name in info}}


SNAPSHOT_ERROR = "EnvPool can neither give nor take the state of a game; begin an episode anew with reset(seed=...)"


class Procgen(MultiViewEnv):
    """A game in a pool of its own. A seed makes the pool anew and with it the sequence of levels.

    `info` has the `level_seed`, and after a step whether that step made the `level_complete`.
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
