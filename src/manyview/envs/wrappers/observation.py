"""Some of an environment's views, in a chosen order."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from manyview.envs.views import (
    MASK,
    Image,
    NotRestorable,
    Observation,
    State,
    View,
    ViewWrapper,
    get_views,
    make_observation_space,
    validate_views,
)


class SelectViews(ViewWrapper):
    """The environment as it looks to somebody who has only these cameras."""

    def __init__(self, env: gym.Env[Observation, Any], names: Sequence[str]) -> None:
        super().__init__(env)
        available = [view.name for view in get_views(env)]
        if missing := [name for name in names if name not in available]:
            raise ValueError(f"{env} has the views {available}, not {missing}")
        self._indices = [available.index(name) for name in names]
        self.views = validate_views([self.views[column] for column in self._indices])
        self.metadata = {**env.metadata, "views": self.views}
        self.observation_space = make_observation_space(self.views)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._select(observation), info

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._select(observation), reward, terminated, truncated, info

    def _select(self, observation: Observation) -> Observation:
        selected = {view.name: observation[view.name] for view in self.views}
        return {**selected, MASK: observation[MASK][self._indices]}

    def restore(self, state: State) -> Observation:
        return self._select(super().restore(state))


class FrameStack(ViewWrapper):
    """Stacks each view's last `stack_size` frames along the channels, oldest first.

    A stack never reaches back over a reset or over a frame whose camera was absent: the first frame after it stands in
    for the older ones. So frame `b` back at time `t` is `t - min(b, age)`, with `age` the number of steps the view has
    been present without a break, and a replay of single frames builds the same stack by index.
    """

    def __init__(self, env: gym.Env[Observation, Any], stack_size: int) -> None:
        super().__init__(env)
        if stack_size < 1:
            raise ValueError(f"frame_stack must be at least 1, got {stack_size}")
        self.stack_size = stack_size
        self.observation_space = make_observation_space(self.views, frame_stack=stack_size)
        # Channels first in memory: a new frame then moves whole pictures, ten times cheaper than interleaving them,
        # and the tensors that networks want are these bytes as they lie. Observations are views of it as H x W x C.
        self._stacks: dict[str, Image | None] = {}  # [C * frames, H, W]; None for an absent view
        self.changed_views: tuple[str, ...] = ()
        """Those that showed another picture when they were restored than when the snapshot was taken."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._stacks = dict.fromkeys((view.name for view in self.views), None)
        return self._append_frames(observation), info

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._append_frames(observation), reward, terminated, truncated, info

    def _append_frames(self, observation: Observation) -> Observation:
        for view, present in zip(self.views, observation[MASK].tolist(), strict=True):
            frame = observation[view.name].transpose(2, 0, 1) if present else None
            self._stacks[view.name] = self._append_frame(self._stacks[view.name], frame)
        return self._build_observation()

    def _append_frame(self, stack: Image | None, frame: Image | None) -> Image | None:
        if frame is None:
            return None
        if stack is None:
            return np.tile(frame, (self.stack_size, 1, 1))
        appended = np.empty_like(stack)
        channels = len(frame)
        appended[:-channels] = stack[channels:]
        appended[-channels:] = frame
        return appended

    def _build_observation(self) -> Observation:
        observation: Observation = {view.name: self._get_image(view) for view in self.views}
        observation[MASK] = np.array([self._stacks[view.name] is not None for view in self.views], np.int8)
        return observation

    def _get_image(self, view: View) -> Image:
        stack = self._stacks[view.name]
        if stack is None:
            return np.zeros((view.height, view.width, view.channels * self.stack_size), np.uint8)
        return stack.copy().transpose(1, 2, 0)  # the caller may write into it

    def snapshot(self) -> State:
        return {
            "env": super().snapshot(),
            "stacks": {name: s.copy() for name, s in self._stacks.items() if s is not None},
        }

    def restore(self, state: State) -> Observation:
        shown = super().restore(state["env"])
        self._stacks = {view.name: self._validate_stack(view, state["stacks"].get(view.name)) for view in self.views}
        seen = [view for view, present in zip(self.views, shown[MASK].tolist(), strict=True) if present]
        self.changed_views = tuple(view.name for view in seen if not self._is_newest(view, shown[view.name]))
        return self._build_observation()

    def _is_newest(self, view: View, picture: Image) -> bool:
        """Return whether this is the newest frame of a view; an absent one has none that could differ."""
        stack = self._stacks[view.name]
        return stack is None or np.array_equal(stack[-view.channels :], picture.transpose(2, 0, 1))

    def _validate_stack(self, view: View, stack: Any) -> Image | None:
        """A stack from outside, which must be one that this view can have; absent views have none."""
        shape = (view.channels * self.stack_size, view.height, view.width)
        if stack is not None and (stack.shape, stack.dtype) != (shape, np.uint8):
            raise NotRestorable(f"the snapshot's frames of {view.name!r} are not of this environment")
        return None if stack is None else np.asarray(stack)
