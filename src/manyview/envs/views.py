"""Observation format: named uint8 views and a mask of the views that are present.

    {"side": uint8 [H, W, C], "back": uint8 [H, W, C], "mask": int8 [V], 0 or 1}

The mask follows the order of `get_views(env)`. An absent view is all zeros. Frames are stacked along the channels,
oldest first. A vector environment prepends its number of environments to every shape.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.utils.text import sanitize_text

MASK = "mask"
"""Key of the view mask in an observation."""

Image = NDArray[np.uint8]  # [H, W, C]
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


def make_observation_space(views: Sequence[View], *, frame_stack: int = 1) -> spaces.Space[Observation]:
    """Return the dict space of stacked views, in the order given, and their mask."""
    entries: list[tuple[str, spaces.Space[Any]]] = [
        (view.name, spaces.Box(0, 255, (view.height, view.width, view.channels * frame_stack), np.uint8))
        for view in views
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


def get_dict_space(env: gym.Env[Observation, Any]) -> spaces.Dict:
    """Return the observation space of an environment; `TypeError` unless it is a dict space."""
    space: Any = env.observation_space
    if not isinstance(space, spaces.Dict):
        raise TypeError(f"wrong observation space of {env}: expected a dict of views, got {space}")
    return space


def build_observation(views: Sequence[View], images: Mapping[str, Image | None]) -> Observation:
    """Build an observation from an image per view; None marks an absent view."""
    mask = np.empty(len(views), np.int8)
    observation: Observation = {}
    for index, view in enumerate(views):
        image = images[view.name]
        mask[index] = image is not None
        observation[view.name] = np.zeros(view.shape, np.uint8) if image is None else image
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


class MultiViewEnv(gym.Env[Observation, Any]):
    """Base class of the environments.

    They return single frames without checks; `wrap` adds frame stack and checks.
    """

    def __init__(self, views: Sequence[View], action_space: spaces.Space[Any]) -> None:
        self.views = validate_views(views)
        self.metadata = {**self.metadata, "views": self.views}
        self.observation_space = make_observation_space(self.views)
        self.action_space = action_space

    def observe(self, images: Mapping[str, Image | None]) -> Observation:
        """Build an observation from an image per view; None marks an absent view."""
        return build_observation(self.views, images)

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
        self.views = get_views(env)

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
