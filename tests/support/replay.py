"""An environment of random images, and replay buffers filled from it."""

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

FILL_COLOR = (9, 0, 255)
IMAGE_SHAPE = (5, 7, 3)  # 35 pixels: packed bits leave the last byte partly empty


class NoiseEnv(MultiViewEnv):
    """Two cameras that show noise, and the foreground of `side` as a derived view.

    A frame sometimes repeats the previous one, and sometimes only the derived view is absent: stacks hide both.
    """

    def __init__(self, *, fill: tuple[int, int, int] = FILL_COLOR, max_steps: int = 9) -> None:
        height, width, _ = IMAGE_SHAPE
        foreground = View("side_foreground", height, width, derived_from="side", fill=fill)
        super().__init__((foreground, View("back", height, width), View("side", height, width)), spaces.Discrete(3))
        self._max_steps, self._images = max_steps, dict[str, Image]()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._steps_left = int(self.np_random.integers(1, self._max_steps + 1))
        self._images = {}
        return self._draw_observation(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._steps_left -= 1
        done, terminal = self._steps_left == 0, bool(self.np_random.integers(2))
        return self._draw_observation(), float(self.np_random.normal()), done and terminal, done and not terminal, {}

    def _draw_observation(self) -> Observation:
        rng = self.np_random
        if not self._images or rng.random() < 0.8:
            self._images = {name: rng.integers(256, size=IMAGE_SHAPE, dtype=np.uint8) for name in ("side", "back")}
        side, mask = self._images["side"], rng.random(IMAGE_SHAPE[:2]) < 0.5
        foreground = None if rng.random() < 0.2 else remove_background(side, mask, self.views[0].fill)
        return self.observe({**self._images, "side_foreground": foreground})


@dataclass
class RecordedSteps:
    """Observations, actions and outcomes as the environment returned them."""

    observations: list[Observation] = field(default_factory=list)
    outcomes: list[tuple[Any, float, bool] | None] = field(default_factory=list)
    """Action, reward and termination after each observation; None after the last one of an episode."""
    indices: list[int] = field(default_factory=list)
    """Index of each observation in the replay buffer."""

    def stack_views(self, names: Sequence[str]) -> NDArray[np.uint8]:
        """Return the images of these views, [N, V, C, H, W]."""
        return np.stack(
            [np.stack([observation[name].transpose(2, 0, 1) for name in names]) for observation in self.observations]
        )

    def stack_masks(self) -> NDArray[np.bool_]:
        """Return the view masks, [N, V]."""
        return np.stack([observation[MASK].astype(bool) for observation in self.observations])


def make_replay_buffer(
    env: gym.Env[Observation, Any],
    *,
    capacity: int,
    frame_stack: int,
    directory: Path | None = None,
    feature_shape: FeatureShape | None = None,
) -> ReplayBuffer:
    """Return an empty replay buffer for an environment."""
    space: Any = env.action_space
    replay = ReplayBuffer(
        get_views(env),
        action_shape=space.shape,
        action_dtype=space.dtype,
        capacity=capacity,
        frame_stack=frame_stack,
        directory=directory,
        feature_shape=feature_shape,
    )
    replay.feature_fn = feature_shape and PixelProjection(feature_shape)
    return replay


class PixelProjection:
    """Fixed random projections of each view and of the mean over present views."""

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


def get_newest_frames(observation: Observation, views: Sequence[View]) -> Observation:
    """Return the newest frame of every stack, as a replay buffer stores it."""
    frames = {view.name: observation[view.name][..., -view.channels :] for view in views}
    return {**frames, MASK: observation[MASK]}


def record_steps(env: gym.Env[Observation, Any], replay: ReplayBuffer, *, steps: int, seed: int = 0) -> RecordedSteps:
    """Play random steps, add them to the replay buffer and return them."""
    recorded = RecordedSteps()
    env.action_space.seed(seed)
    for action, reward, terminated, observation, blind in play_steps(env, steps=steps, seed=seed):
        if action is None:
            replay.start_episode(get_newest_frames(observation, replay.views))
        else:
            recorded.outcomes[-1] = (action, reward, terminated)
            replay.add(action, reward, terminated, get_newest_frames(observation, replay.views), repeated=blind)
        recorded.observations.append({name: part.copy() for name, part in observation.items()})
        recorded.outcomes.append(None)
        recorded.indices.append(replay.inserted - 1)
    return recorded


def play_steps(
    env: gym.Env[Observation, Any], *, steps: int, seed: int = 0
) -> Iterator[tuple[Any, float, bool, Observation, bool]]:
    """Play random steps; yield (action, reward, terminated, observation, blind).

    The action is None for the first observation of an episode.
    """
    done, is_first = True, True
    for _ in range(steps):
        if done:
            observation, _ = env.reset(seed=seed if is_first else None)
            done = is_first = False
            yield None, 0.0, False, observation, False
        action = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        yield action, float(reward), terminated, observation, info.get("blind", False)


def are_batches_equal(first: Batch, second: Batch) -> bool:
    """Return whether all tensors of two batches are equal."""
    pairs = zip(first, second, strict=True)
    return all(left is right if left is None or right is None else left.equal(right) for left, right in pairs)


def clone_batch(batch: Batch) -> Batch:
    """Return a copy to keep, because the sampler reuses the memory of its batches."""
    return batch.map(torch.Tensor.clone)
