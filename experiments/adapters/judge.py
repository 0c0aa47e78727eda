"""Decide when a seed of Deep Sea is solved."""

from collections.abc import Callable
from typing import Any

import manyview
from experiments.deep_sea import EVALUATE_EVERY_FRAMES, EVALUATIONS_IN_A_ROW, Attempt

Act = Callable[[dict[str, Any]], Any]
"""The policy without noise: the action for an observation."""


class Judge:
    """Plays an episode without noise every 200 frames; solved once two in a row reach the treasure."""

    def __init__(self, task: str, act: Act) -> None:
        self.env, self.act = manyview.make(task), act
        self.found_at: int | None = None
        self.solved_at: int | None = None
        self.frames, self._evaluated, self._in_a_row = 0, 0, 0

    def see_rewards(self, rewards: Any, frames: int) -> None:
        """Look for the treasure in the rewards of training steps up to `frames`."""
        self.frames = frames
        if self.found_at is None and (rewards > 0.5).any():  # the treasure is 1, all else a cost
            self.found_at = frames

    def is_solved(self) -> bool:
        """Evaluate if it is due, and return whether the seed is solved."""
        if self.solved_at is None and self.frames // EVALUATE_EVERY_FRAMES > self._evaluated:
            self._evaluated = self.frames // EVALUATE_EVERY_FRAMES
            self._in_a_row = self._in_a_row + 1 if self._play() > 0.5 else 0
            if self._in_a_row == EVALUATIONS_IN_A_ROW:
                self.solved_at = self.frames
        return self.solved_at is not None

    def _play(self) -> float:
        observation, _ = self.env.reset(seed=0)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = self.env.step(self.act(observation))
            total, ended = total + float(reward), terminated or truncated
        return total

    def make_attempt(self, method: str, seed: int) -> Attempt:
        return Attempt(method, seed, self.solved_at, self.found_at, self.frames)
