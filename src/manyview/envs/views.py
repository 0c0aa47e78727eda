"""Observation format: named uint8 views, named state vectors and a mask of the views that are present.

    {"side": uint8 [H, W, C], "back": uint8 [H, W, C], "joints": float32 [7], "mask": int8 [V], 0 or 1}

The mask follows the order of `get_views(env)`. An absent view is all zeros. Frames are stacked along the channels,
oldest first. State vectors are optional, follow the order of `get_state_vectors(env)` and have no mask. A vector
environment prepends its number of environments to every shape.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.utils.text import sanitize_text

MASK = "mask"
"""Key of the view mask in an observation."""

Image = NDArray[np.uint8]  # [H, W, C]
Vector = NDArray[np.float32]  # [size]
Observation = dict[str, NDArray[Any]]
State = dict[str, Any]
"""Result of `snapshot`: arrays, JSON values and nested dicts of these, by name. It can be stored as arrays and JSON."""


class ViewWarning(UserWarning):
    """A view looks wrong.

    The message names the view, the symptom, its first step and the remedy.
    """


class NotRestorable(RuntimeError):  # noqa: N818  a fact about an environment, which callers expect
    """The environment cannot return or restore its state in mid-episode."""


@dataclass(frozen=True)
class View:
    """A camera, or a view derived from one: its foreground or an augmentation."""

    name: str
    height: int
    width: int
    channels: int = 3
    derived_from: str | None = None
    """The camera that this view is computed from; None for a camera."""
    fill: tuple[int, ...] = (0, 0, 0)
    """Color that replaces the background in a foreground view."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a single frame."""
        return (self.height, self.width, self.channels)


@dataclass(frozen=True)
class StateVector:
    """A named vector of numbers beside the views, such as joints, gripper, force or goal."""

    name: str
    size: int


def make_observation_space(
    views: Sequence[View], *, frame_stack: int = 1, vectors: Sequence[StateVector] = (), state_stack: int = 1
) -> spaces.Space[Observation]:
    """Return the dict space of stacked views and state vectors, in the order given, and the mask of the views."""
    entries: list[tuple[str, spaces.Space[Any]]] = [
        (view.name, spaces.Box(0, 255, (view.height, view.width, view.channels * frame_stack), np.uint8))
        for view in views
    ]
    entries += [
        (vector.name, spaces.Box(-np.inf, np.inf, (vector.size * state_stack,), np.float32)) for vector in vectors
    ]
    entries.append((MASK, spaces.MultiBinary(len(views))))
    # spaces.Dict keeps the order of a sequence and sorts a mapping.
    space: Any = spaces.Dict(entries)
    return cast("spaces.Space[Observation]", space)


def get_views(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]) -> tuple[View, ...]:
    """Return the views of an environment or vector environment, in the order of its mask."""
    views: tuple[View, ...] | None = env.metadata.get("views")
    if views is None:
        raise TypeError(
            f"{env} declares no views. Wrap it: manyview.MultiView(env, views={{'front': ..., 'side': ...}})"
        )
    return views


def get_state_vectors(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]) -> tuple[StateVector, ...]:
    """Return the state vectors of an environment or vector environment, in the order of its observations."""
    return tuple(env.metadata.get("state_vectors", ()))


def get_dict_space(env: gym.Env[Observation, Any]) -> spaces.Dict:
    """Return the observation space of an environment; `TypeError` unless it is a dict space."""
    space: Any = env.observation_space
    if not isinstance(space, spaces.Dict):
        raise TypeError(f"wrong observation space of {env}: expected a dict of views, got {space}")
    return space


NO_VECTORS: Mapping[str, Vector] = MappingProxyType({})


def build_observation(
    views: Sequence[View], images: Mapping[str, Image | None], vectors: Mapping[str, Vector] = NO_VECTORS
) -> Observation:
    """Build an observation from an image per view and its state vectors; None marks an absent view."""
    mask = np.empty(len(views), np.int8)
    observation: Observation = {}
    for index, view in enumerate(views):
        image = images[view.name]
        mask[index] = image is not None
        observation[view.name] = np.zeros(view.shape, np.uint8) if image is None else image
    observation.update(vectors)
    observation[MASK] = mask
    return observation


def warn_camera_failures(env_name: str, failures: Mapping[str, str], failing_before: frozenset[str]) -> frozenset[str]:
    """Warn about each newly failing camera and return all that fail now."""
    for name, reason in failures.items():
        if name not in failing_before:
            warnings.warn(
                f"{env_name}: view {name!r} is absent ({reason}). It is masked, and its camera is read again at every "
                "step. Check the camera, or remove the view.",
                ViewWarning,
                stacklevel=3,
            )
    return frozenset(failures)


def validate_views(views: Sequence[View]) -> tuple[View, ...]:
    """Return the views as a tuple; `ValueError` if there are none or their names are invalid."""
    names = [view.name for view in views]
    if not names:
        raise ValueError("no views: expected at least one view, got none")
    if len(set(names)) < len(names):
        raise ValueError(f"duplicate view names: expected every view name once, got {names}")
    if MASK in names:
        raise ValueError(f"reserved view name: {MASK!r} is the key of the view mask. Rename the view.")
    for view in views:
        if view.derived_from is not None and view.derived_from not in names:
            raise ValueError(
                f"missing camera of view {view.name!r}: expected {view.derived_from!r}, which it is derived from, "
                f"among the views, got {names}"
            )
    return tuple(views)


def validate_state_vectors(vectors: Sequence[StateVector], views: Sequence[View]) -> tuple[StateVector, ...]:
    """Return the state vectors as a tuple; `ValueError` if a name or size is invalid."""
    names = [*(view.name for view in views), *(vector.name for vector in vectors)]
    if len(set(names)) < len(names) or MASK in names:
        raise ValueError(
            f"invalid names of state vectors: expected every name of a view or vector once, and not {MASK!r}, got "
            f"{names}. Rename a view or vector."
        )
    for vector in vectors:
        if vector.size < 1:
            raise ValueError(f"invalid size of state vector {vector.name!r}: expected at least 1, got {vector.size}")
    return tuple(vectors)


class MultiViewEnv(gym.Env[Observation, Any]):
    """Base class of the environments.

    They return single frames without checks; `wrap` adds frame stack and checks.
    """

    def __init__(
        self, views: Sequence[View], action_space: spaces.Space[Any], *, state_vectors: Sequence[StateVector] = ()
    ) -> None:
        self.views = validate_views(views)
        self.state_vectors = validate_state_vectors(state_vectors, self.views)
        self.metadata = {**self.metadata, "views": self.views, "state_vectors": self.state_vectors}
        self.observation_space = make_observation_space(self.views, vectors=self.state_vectors)
        self.action_space = action_space

    def observe(self, images: Mapping[str, Image | None], vectors: Mapping[str, Vector] = NO_VECTORS) -> Observation:
        """Build an observation from an image per view and its state vectors; None marks an absent view."""
        return build_observation(self.views, images, vectors)

    def snapshot(self) -> State:
        """Return the complete state.

        The rest of this episode and all later episodes depend on nothing else.
        """
        raise NotRestorable(f"{type(self).__name__} does not support snapshots")

    def restore(self, state: State) -> Observation:  # noqa: ARG002
        """Continue exactly from a snapshot and return the observation at which it was taken."""
        raise NotRestorable(f"{type(self).__name__} does not support snapshots")


class ViewWrapper(gym.Wrapper[Observation, Any, Observation, Any]):
    """Base class of the wrappers: forwards snapshots.

    A stateful wrapper returns `{"env": <snapshot of the wrapped environment>, ...}`.
    """

    def __init__(self, env: gym.Env[Observation, Any]) -> None:
        super().__init__(env)
        self.views, self.state_vectors = get_views(env), get_state_vectors(env)

    def snapshot(self) -> State:
        return snapshot(self.env)

    def restore(self, state: State) -> Observation:
        return restore(self.env, state)


def snapshot(env: gym.Env[Observation, Any]) -> State:
    """Return the state of any environment with a method `snapshot`; `NotRestorable` otherwise."""
    take_snapshot = getattr(env, "snapshot", None)
    if take_snapshot is None:
        raise NotRestorable(f"{env} has no method `snapshot`")
    state: State = take_snapshot()
    return state


def restore(env: gym.Env[Observation, Any], state: State) -> Observation:
    """Restore any environment with a method `restore`; `NotRestorable` otherwise.

    Returns the observation at which the snapshot was taken.
    """
    restore_state = getattr(env, "restore", None)
    if restore_state is None:
        raise NotRestorable(f"{env} has no method `restore`")
    observation: Observation = restore_state(state)
    return observation


def validate_counts(state: Any, expected: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of a snapshot; `NotRestorable` unless they have the expected names."""
    if (
        not isinstance(state, dict)
        or state.keys() != expected.keys()
        or any(type(count) is not int for count in state.values())
    ):
        raise NotRestorable(
            f"invalid counts in the snapshot: expected integers for {', '.join(expected)}, got {sanitize_text(state)}"
        )
    return dict(state)
