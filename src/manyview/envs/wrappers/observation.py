"""Observation wrappers: selection of views and state vectors, resizing, frame stack."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from manyview.envs.foreground import extract_foreground_mask, remove_background
from manyview.envs.views import (
    MASK,
    Image,
    NotRestorable,
    Observation,
    State,
    StateVector,
    Vector,
    View,
    ViewWrapper,
    get_state_vectors,
    get_views,
    make_observation_space,
    validate_views,
)
from manyview.runtime.frame_stack import append_frame
from manyview.runtime.image_resize import check_resize, resize_image


class TransformViews(ViewWrapper):
    """Base class of wrappers that compute each observation from that of the wrapped environment alone."""

    def __init__(
        self, env: gym.Env[Observation, Any], views: Sequence[View], vectors: Sequence[StateVector] | None = None
    ) -> None:
        super().__init__(env)
        self.views = validate_views(views)
        if vectors is not None:
            self.state_vectors = tuple(vectors)
        self.metadata = {**env.metadata, "views": self.views, "state_vectors": self.state_vectors}
        self.observation_space = make_observation_space(self.views, vectors=self.state_vectors)

    @abstractmethod
    def transform(self, observation: Observation) -> Observation:
        """Return the observation that replaces `observation`."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self.transform(observation), info

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self.transform(observation), reward, terminated, truncated, info

    def restore(self, state: State) -> Observation:
        return self.transform(super().restore(state))


class SelectViews(TransformViews):
    """Keeps only the named views, in the given order."""

    def __init__(self, env: gym.Env[Observation, Any], names: Sequence[str]) -> None:
        views = get_views(env)
        available = [view.name for view in views]
        if missing := [name for name in names if name not in available]:
            raise ValueError(f"unknown view of {env}: expected names from {available}, got {missing}")
        self._indices = [available.index(name) for name in names]
        super().__init__(env, [views[column] for column in self._indices])

    def transform(self, observation: Observation) -> Observation:
        views = {view.name: observation[view.name] for view in self.views}
        vectors = {vector.name: observation[vector.name] for vector in self.state_vectors}
        return {**views, **vectors, MASK: observation[MASK][self._indices]}


class SelectStateVectors(TransformViews):
    """Keeps only the named state vectors, in the given order."""

    def __init__(self, env: gym.Env[Observation, Any], names: Sequence[str]) -> None:
        available = {vector.name: vector for vector in get_state_vectors(env)}
        check_state_names(names, list(available), env)
        super().__init__(env, get_views(env), [available[name] for name in names])

    def transform(self, observation: Observation) -> Observation:
        views = {view.name: observation[view.name] for view in self.views}
        vectors = {vector.name: observation[vector.name] for vector in self.state_vectors}
        return {**views, **vectors, MASK: observation[MASK]}


def check_state_names(names: Sequence[str], available: Sequence[str], env: object) -> None:
    """Raise `ValueError` unless each name is one of the state vectors on offer, and occurs once."""
    if not set(names) <= set(available) or len(set(names)) < len(names):
        offer = ", ".join(available) or "none: it offers no state vectors"
        raise ValueError(f"unknown state of {env}: expected each once of {offer}, got {', '.join(names)}")


class ResizeViews(TransformViews):
    """Area-averages every view to a square, with the aspect that the environment declares, or `crop`.

    A pixel of a derived view is foreground if more than 1/510 of its area is.
    """

    def __init__(self, env: gym.Env[Observation, Any], size: int) -> None:
        super().__init__(env, [replace(view, height=size, width=size) for view in get_views(env)])
        self._size, self._aspect = size, env.metadata.get("aspect", "crop")
        check_resize(size, self._aspect)
        self.metadata.setdefault("camera_sizes", {view.name: view.shape[:2] for view in get_views(env)})
        self.metadata["resize_sizes"] = (*env.metadata.get("resize_sizes", ()), size)

    def transform(self, observation: Observation) -> Observation:
        cameras = {view.name: self._resize(observation[view.name]) for view in self.views if view.derived_from is None}
        derived = {
            view.name: self._resize_derived(view, observation[view.name], cameras[view.derived_from])
            for view in self.views
            if view.derived_from is not None
        }
        return {**observation, **cameras, **derived}

    def _resize(self, image: Image) -> Image:
        return resize_image(image, self._size, self._aspect)

    def _resize_derived(self, view: View, image: Image, camera: Image) -> Image:
        """Cut a derived view out of its resized camera, so that mask bits still reconstruct it."""
        foreground = self._resize(np.where(extract_foreground_mask(image, view.fill)[..., None], np.uint8(255), 0))
        return remove_background(camera, foreground[..., 0] > 0, view.fill)


class FrameStack(ViewWrapper):
    """Stacks each view's last `stack_size` frames along the channels, oldest first, and `state_stack` state vectors.

    A stack never spans a reset or a frame in which the view was absent: the first frame after it is repeated in place
    of the older ones. So frame `b` back at time `t` is `t - min(b, age)`, where `age` is the number of steps since that
    first frame, and the replay buffer rebuilds the same stack from single frames by index. State vectors have no mask:
    the first of an episode is repeated.
    """

    def __init__(self, env: gym.Env[Observation, Any], stack_size: int, *, state_stack: int = 1) -> None:
        super().__init__(env)
        for name, size in (("frame_stack", stack_size), ("state_stack", state_stack)):
            if size < 1:
                raise ValueError(f"invalid {name}: expected at least 1, got {size}")
        self.stack_size, self.state_stack = stack_size, state_stack
        self.observation_space = make_observation_space(
            self.views, frame_stack=stack_size, vectors=self.state_vectors, state_stack=state_stack
        )
        # Channels first in memory: appending a frame copies contiguous images, ten times cheaper than interleaving
        # them, and networks take the same memory layout. Observations are transposed views of shape H x W x C.
        self._stacks: dict[str, Image | None] = {}  # [C * frames, H, W]; None for an absent view
        self.changed_views: tuple[str, ...] = ()
        """Views whose image after `restore` differs from the image in the snapshot."""
        self._vector_stacks: dict[str, Vector] = {}  # [state_stack * size]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._stacks = dict.fromkeys((view.name for view in self.views), None)
        self._vector_stacks = {
            part.name: np.tile(observation[part.name], self.state_stack) for part in self.state_vectors
        }
        return self._append_frames(observation), info

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._append_frames(observation), reward, terminated, truncated, info

    def _append_frames(self, observation: Observation) -> Observation:
        for view, present in zip(self.views, observation[MASK].tolist(), strict=True):
            frame = observation[view.name].transpose(2, 0, 1) if present else None
            self._stacks[view.name] = append_frame(self._stacks[view.name], frame, self.stack_size)
        for vector in self.state_vectors:
            stack = self._vector_stacks[vector.name]
            self._vector_stacks[vector.name] = np.concatenate([stack[vector.size :], observation[vector.name]])
        return self._build_observation()

    def _build_observation(self) -> Observation:
        observation: Observation = {view.name: self._get_image(view) for view in self.views}
        observation.update({name: stack.copy() for name, stack in self._vector_stacks.items()})
        observation[MASK] = np.array([self._stacks[view.name] is not None for view in self.views], np.int8)
        return observation

    def _get_image(self, view: View) -> Image:
        stack = self._stacks[view.name]
        if stack is None:
            return np.zeros((view.height, view.width, view.channels * self.stack_size), np.uint8)
        return stack.copy().transpose(1, 2, 0)  # a copy: the caller may write into it

    def snapshot(self) -> State:
        stacks = {name: s.copy() for name, s in self._stacks.items() if s is not None}
        vectors = {name: stack.copy() for name, stack in self._vector_stacks.items()}
        # Left out if there are none, as in snapshots from before state vectors.
        return {"env": super().snapshot(), "stacks": stacks, **({"vectors": vectors} if vectors else {})}

    def restore(self, state: State) -> Observation:
        restored = super().restore(state["env"])
        self._vector_stacks = {part.name: self._validate_vectors(part, state) for part in self.state_vectors}
        self._stacks = {view.name: self._validate_stack(view, state["stacks"].get(view.name)) for view in self.views}
        present_views = [view for view, present in zip(self.views, restored[MASK].tolist(), strict=True) if present]
        self.changed_views = tuple(
            view.name for view in present_views if not self._is_newest(view, restored[view.name])
        )
        return self._build_observation()

    def _is_newest(self, view: View, image: Image) -> bool:
        """Return whether `image` is the newest frame of a view, True if the saved view is absent."""
        stack = self._stacks[view.name]
        return stack is None or np.array_equal(stack[-view.channels :], image.transpose(2, 0, 1))

    def _validate_stack(self, view: View, stack: Any) -> Image | None:
        """Return the stack of a snapshot; None for an absent view."""
        shape = (view.channels * self.stack_size, view.height, view.width)
        if stack is not None and (stack.shape, stack.dtype) != (shape, np.uint8):
            raise NotRestorable(
                f"invalid frames of view {view.name!r} in the snapshot: expected uint8 of shape {shape}, got "
                f"{stack.dtype} of shape {stack.shape}"
            )
        return None if stack is None else np.asarray(stack)

    def _validate_vectors(self, vector: StateVector, state: State) -> Vector:
        """Return the stack of a state vector in a snapshot."""
        stack, shape = state.get("vectors", {}).get(vector.name), (vector.size * self.state_stack,)
        is_valid = isinstance(stack, np.ndarray) and (stack.shape, stack.dtype) == (shape, np.float32)
        if not is_valid or not np.isfinite(stack).all():
            raise NotRestorable(
                f"invalid state vector {vector.name!r} in the snapshot: expected finite float32 of shape {shape}, got "
                f"{'none' if stack is None else stack}"
            )
        return np.asarray(stack)
