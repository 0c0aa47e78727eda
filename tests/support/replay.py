"""An environment whose pictures are all different, and a replay of what somebody sees there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.data import Batch, ReplayBuffer
from manyview.data.layout import FeatureShape
from manyview.envs import MASK, MultiViewEnv, View, get_views
from manyview.envs.foreground import remove_background
from manyview.envs.views import Image, Observation

FILL = (9, 0, 255)
SHAPE = (5, 7, 3)  # 35 pixels: the bits do not fill their last byte


class Noise(MultiViewEnv):
    """Two cameras that show noise, the first one also with its background removed.

    Frames are sometimes all alike, and the derived view is sometimes absent alone: what is hard to tell from a stack.
    """

    def __init__(self, *, fill: tuple[int, int, int] = FILL, longest: int = 9) -> None:
        height, width, _ = SHAPE
        cut = View("side_foreground", height, width, derived_from="side", fill=fill)
        super().__init__((cut, View("back", height, width), View("side", height, width)), spaces.Discrete(3))
        self._longest, self._pictures = longest, dict[str, Image]()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._steps_left = int(self.np_random.integers(1, self._longest + 1))
        self._pictures = {}
        return self._drawn(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._steps_left -= 1
        over, dies = self._steps_left == 0, bool(self.np_random.integers(2))
        return self._drawn(), float(self.np_random.normal()), over and dies, over and not dies, {}

    def _drawn(self) -> Observation:
        rng = self.np_random
        if not self._pictures or rng.random() < 0.8:
            self._pictures = {name: rng.integers(256, size=SHAPE, dtype=np.uint8) for name in ("side", "back")}
        side, foreground = self._pictures["side"], rng.random(SHAPE[:2]) < 0.5
        cut = None if rng.random() < 0.2 else remove_background(side, foreground, self.views[0].fill)
        return self.observe({**self._pictures, "side_foreground": cut})


@dataclass
class Lived:
    """What somebody saw, did and was paid, as it was then."""

    observations: list[Observation] = field(default_factory=list)
    outcomes: list[tuple[Any, float, bool] | None] = field(default_factory=list)
    """What was done at each observation and what came of it; None at the last one of an episode."""
    numbers: list[int] = field(default_factory=list)
    """Where the replay has each observation."""

    def views(self, names: Sequence[str]) -> NDArray[np.uint8]:
        return np.stack(
            [np.stack([seen[name].transpose(2, 0, 1) for name in names]) for seen in self.observations]
        )  # [N, V, C, H, W]

    def masks(self) -> NDArray[np.bool_]:
        return np.stack([seen[MASK].astype(bool) for seen in self.observations])


def replay_for(
    env: gym.Env[Observation, Any],
    *,
    capacity: int,
    frame_stack: int,
    folder: Path | None = None,
    feature_shape: FeatureShape | None = None,
) -> ReplayBuffer:
    space: Any = env.action_space
    replay = ReplayBuffer(
        get_views(env),
        action_shape=space.shape,
        action_dtype=space.dtype,
        capacity=capacity,
        frame_stack=frame_stack,
        directory=folder,
        feature_shape=feature_shape,
    )
    replay.feature_fn = feature_shape and ProjectPixels(feature_shape)
    return replay


class ProjectPixels:
    """Features by fixed random projections: of one view each, and of the mean of the present views."""

    def __init__(self, shape: FeatureShape) -> None:
        self.shape = shape

    def __call__(self, views: NDArray[np.uint8], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        groups, size = self.shape
        pixels = views.reshape(*views.shape[:2], -1) / 255 * mask[..., None]  # [B, V, C * H * W]
        mean = pixels.sum(1, keepdims=True) / mask.sum(1).clip(1)[:, None, None]
        inputs = mean if groups == 1 else np.concatenate([pixels, mean], axis=1)[:, :groups]
        weights = np.random.default_rng(0).normal(size=(inputs.shape[2], size))
        features: NDArray[np.float32] = np.einsum("bgi,ip->bgp", inputs, weights).astype(np.float32)
        return features


def newest_frames(observation: Observation, views: Sequence[View]) -> Observation:
    """Return the newest frame of every stack, which is what a replay buffer takes."""
    frames = {view.name: observation[view.name][..., -view.channels :] for view in views}
    return {**frames, MASK: observation[MASK]}


def live(env: gym.Env[Observation, Any], replay: ReplayBuffer, *, steps: int, seed: int = 0) -> Lived:
    """So many steps in the environment, added to the replay and remembered beside it."""
    lived = Lived()
    env.action_space.seed(seed)
    for action, reward, terminated, observation, blind in experience(env, steps=steps, seed=seed):
        if action is None:
            replay.start_episode(newest_frames(observation, replay.views))
        else:
            lived.outcomes[-1] = (action, reward, terminated)
            replay.add(action, reward, terminated, newest_frames(observation, replay.views), repeated=blind)
        lived.observations.append({name: part.copy() for name, part in observation.items()})
        lived.outcomes.append(None)
        lived.numbers.append(replay.inserted - 1)
    return lived


def experience(
    env: gym.Env[Observation, Any], *, steps: int, seed: int = 0
) -> Iterator[tuple[Any, float, bool, Observation, bool]]:
    """(action, reward, terminated, observation, blind); the action is None at the beginning of an episode."""
    over, first = True, True
    for _ in range(steps):
        if over:
            observation, _ = env.reset(seed=seed if first else None)
            over = first = False
            yield None, 0.0, False, observation, False
        action = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        yield action, float(reward), terminated, observation, info.get("blind", False)


def equal_batches(one: Batch, other: Batch) -> bool:
    pairs = zip(one, other, strict=True)
    return all(left is right if left is None or right is None else left.equal(right) for left, right in pairs)


def copied(batch: Batch) -> Batch:
    """To keep: the sampler uses the memory of its batches again."""
    return batch.map(torch.Tensor.clone)
