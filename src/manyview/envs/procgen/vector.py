"""Many Procgen games at once, at EnvPool's speed, with every step of every game a true transition."""

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from manyview.envs.layers.boundary import described, refuse
from manyview.envs.procgen.pool import ACTIONS, SCREEN, Pool, Step
from manyview.envs.suite import Levels
from manyview.envs.views import MASK, Image, Observation, observation_space

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
        self.single_observation_space = observation_space([SCREEN], frame_stack=frame_stack)
        self.single_action_space = ACTIONS
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(ACTIONS, num_envs)
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.SAME_STEP, "views": (SCREEN,), "task": task}
        self._pool = Pool(task, levels=levels, num_envs=num_envs, num_threads=num_threads)
        self._stacks = np.empty(0, np.uint8)  # [N, 3 * frame_stack, 64, 64], what was shown last
        self._returns = np.zeros(num_envs)
        self._steps = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        if options:
            raise refuse(self._pool.task, "reset options", "none", described(options))
        super().reset(seed=seed)
        frames = self._pool.begin(seed)
        self._returns[:] = 0
        self._steps[:] = 0
        self._stacks = self._begun(frames.images)
        return self._observation(), {"level_seed": frames.level_seeds}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Observation, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Info]:
        step = self._pool.step(self._checked(actions))
        ended = step.terminated | step.truncated
        games = ended.nonzero()[0].astype(np.int32)
        if games.size:
            self._pool.start_reset(games)  # the sums and the last pictures are taken while the threads are at it
        self._returns += step.rewards
        self._steps += 1
        self._stacks = self._pushed(step.frames.images)
        info: Info = {"level_seed": step.frames.level_seeds}
        if games.size:
            info |= self._finals(step, games, ended)
            first = self._pool.finish_reset()
            self._stacks[games] = self._begun(first.images)
            info["level_seed"][games] = first.level_seeds
            self._returns[games] = 0
            self._steps[games] = 0
        return self._observation(), step.rewards, step.terminated, step.truncated, info

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002  Gymnasium's signature
        self._pool.close()

    def _finals(self, step: Step, games: NDArray[np.int32], ended: NDArray[np.bool_]) -> Info:
        """What the episodes leave behind, in the form that Gymnasium's own vector environments give it."""
        observations = np.full(self.num_envs, None, object)
        for game in games:
            # A copy: this row of the stacks is about to become the next episode's.
            picture = self._stacks[game].copy().transpose(1, 2, 0)
            observations[game] = {SCREEN.name: picture, MASK: np.ones(1, np.int8)}
        steps = np.where(ended, self._steps, 0)
        # An action lasts one frame of the game.
        episode = {"return": np.where(ended, self._returns, 0.0), "steps": steps, "frames": steps.copy()}
        final_info = {
            "level_seed": np.where(ended, step.frames.level_seeds, 0),
            "level_complete": step.level_complete,
            "episode": _masked(episode, ended),
        }
        return _masked({"final_obs": observations, "final_info": _masked(final_info, ended)}, ended)

    def _begun(self, images: Image) -> Image:
        """A first frame stands in for the older ones."""
        return images if self.frame_stack == 1 else np.tile(images, (1, self.frame_stack, 1, 1))

    def _pushed(self, images: Image) -> Image:
        return images if self.frame_stack == 1 else np.concatenate([self._stacks[:, SCREEN.channels :], images], 1)

    def _observation(self) -> Observation:
        # Of a stack a copy: the next one is built on it, and the caller may write into what is shown.
        shown = self._stacks if self.frame_stack == 1 else self._stacks.copy()
        return {SCREEN.name: shown.transpose(0, 2, 3, 1), MASK: np.ones((self.num_envs, 1), np.int8)}

    def _checked(self, actions: Any) -> NDArray[np.int32]:
        value = np.asarray(actions)
        last = int(ACTIONS.n) - 1
        if value.shape != (self.num_envs,) or value.dtype.kind not in "iu":
            raise refuse(self._pool.task, "action", f"{self.num_envs} integers from 0 to {last}", described(actions))
        wrong = (value < 0) | (value > last)
        if wrong.any():
            game = int(wrong.argmax())
            raise refuse(
                self._pool.task, "action", f"integers from 0 to {last}", f"{value[game]} for environment {game}"
            )
        return value.astype(np.int32, copy=False)


def _masked(info: Info, ended: NDArray[np.bool_]) -> Info:
    """Every entry with the mask of the environments that have it, under its name with `_` in front."""
    return {**info, **{f"_{name}": ended.copy() for name in info}}
