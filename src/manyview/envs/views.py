"""What an observation is: named uint8 views, and the mask of those that are present.

    {"side": uint8 [H, W, C], "back": uint8 [H, W, C], "mask": int8 [V], 0 or 1}

The mask follows the order of `get_views(env)`. An absent view is all zeros. Frames that are stacked lie along the
channels, oldest first. A vector environment puts its number of environments in front of every shape.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

MASK = "mask"

Image = NDArray[np.uint8]  # [H, W, C]
Observation = dict[str, NDArray[Any]]
State = dict[str, Any]
"""What `snapshot` returns: arrays, JSON values and further such dicts, by name. It can be written as plain files."""


class ViewWarning(UserWarning):
    """Something about a view looks wrong: it names the view, what was seen, since when, and what to do."""


class NotRestorable(RuntimeError):  # noqa: N818  a fact about an environment, which callers expect
    """An environment that cannot give or take its state in mid-episode."""


@dataclass(frozen=True)
class View:
    """One view of one frame: a camera, or made of a camera's picture, which is its foreground or an augmentation."""

    name: str
    height: int
    width: int
    channels: int = 3
    derived_from: str | None = None
    """The camera whose picture this view is made of; None for a camera."""
    fill: tuple[int, ...] = (0, 0, 0)
    """The colour that a foreground has in place of its background."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.height, self.width, self.channels)


def make_observation_space(views: Sequence[View], *, frame_stack: int = 1) -> spaces.Space[Observation]:
    entries: list[tuple[str, spaces.Space[Any]]] = [
        (view.name, spaces.Box(0, 255, (view.height, view.width, view.channels * frame_stack), np.uint8))
        for view in views
    ]
    entries.append((MASK, spaces.MultiBinary(len(views))))
    # A sequence keeps its order; a mapping would be sorted.
    space: Any = spaces.Dict(entries)
    return cast("spaces.Space[Observation]", space)


def get_views(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]) -> tuple[View, ...]:
    """The views of an environment or vector environment, in the order of its mask."""
    views: tuple[View, ...] | None = env.metadata.get("views")
    if views is None:
        raise TypeError(
            f"{env} has no declared views. Wrap it: manyview.MultiView(env, views={{'front': ..., 'side': ...}})"
        )
    return views


def get_dict_space(env: gym.Env[Observation, Any]) -> spaces.Dict:
    """The observation space of an environment as the dict it is."""
    space: Any = env.observation_space
    if not isinstance(space, spaces.Dict):
        raise TypeError(f"the observation of {env} is {space}, not a dict of views")
    return space


def build_observation(views: Sequence[View], images: Mapping[str, Image | None]) -> Observation:
    """The observation of these images; a view without one is absent."""
    mask = np.empty(len(views), np.int8)
    observation: Observation = {}
    for index, view in enumerate(views):
        image = images[view.name]
        mask[index] = image is not None
        observation[view.name] = np.zeros(view.shape, np.uint8) if image is None else image
    observation[MASK] = mask
    return observation


def warn_camera_failures(env_name: str, failures: Mapping[str, str], failing_before: frozenset[str]) -> frozenset[str]:
    """Warn of each camera that fails and did not before; returns those that fail now."""
    for name, reason in failures.items():
        if name not in failing_before:
            warnings.warn(
                f"{env_name}: view {name!r} is absent ({reason}): it is masked, and its camera tried again at every "
                "step; look at the camera, or leave the view out",
                ViewWarning,
                stacklevel=3,
            )
    return frozenset(failures)


def validate_views(views: Sequence[View]) -> tuple[View, ...]:
    names = [view.name for view in views]
    if not names:
        raise ValueError("an environment needs at least one view")
    if len(set(names)) < len(names):
        raise ValueError(f"every view needs a name of its own, got {names}")
    if MASK in names:
        raise ValueError(f"the name {MASK!r} is taken by the mask of present views; call the view something else")
    for view in views:
        if view.derived_from is not None and view.derived_from not in names:
            raise ValueError(f"{view.name!r} is derived from {view.derived_from!r}, which is not among {names}")
    return tuple(views)


class MultiViewEnv(gym.Env[Observation, Any]):
    """The base of our environments: single frames, no stacking, no checks (`wrap` adds those)."""

    def __init__(self, views: Sequence[View], action_space: spaces.Space[Any]) -> None:
        self.views = validate_views(views)
        self.metadata = {**self.metadata, "views": self.views}
        self.observation_space = make_observation_space(self.views)
        self.action_space = action_space

    def observe(self, images: Mapping[str, Image | None]) -> Observation:
        """The observation of these images; a camera that gave None is absent."""
        return build_observation(self.views, images)

    def snapshot(self) -> State:
        """Everything that the rest of the episode, and every later episode, depends on."""
        raise NotRestorable(f"{type(self).__name__} cannot give its state")

    def restore(self, state: State) -> Observation:  # noqa: ARG002
        """Go on from a snapshot as if nothing had happened since; returns the observation it was taken at."""
        raise NotRestorable(f"{type(self).__name__} cannot take a state")


class ViewWrapper(gym.Wrapper[Observation, Any, Observation, Any]):
    """The base of our wrappers: snapshots go through them. One with a state of its own puts it beside its `env`'s."""

    def __init__(self, env: gym.Env[Observation, Any]) -> None:
        super().__init__(env)
        self.views = get_views(env)

    def snapshot(self) -> State:
        return snapshot(self.env)

    def restore(self, state: State) -> Observation:
        return restore(self.env, state)


def snapshot(env: gym.Env[Observation, Any]) -> State:
    """The state of any environment that has one; `NotRestorable` otherwise."""
    take_snapshot = getattr(env, "snapshot", None)
    if take_snapshot is None:
        raise NotRestorable(f"{env} has no method `snapshot`")
    state: State = take_snapshot()
    return state


def restore(env: gym.Env[Observation, Any], state: State) -> Observation:
    restore_state = getattr(env, "restore", None)
    if restore_state is None:
        raise NotRestorable(f"{env} has no method `restore`")
    observation: Observation = restore_state(state)
    return observation


def validate_counts(state: Any, expected: Mapping[str, int]) -> dict[str, int]:
    """Counts from a snapshot, which must be those that are kept here."""
    if (
        not isinstance(state, dict)
        or state.keys() != expected.keys()
        or any(type(count) is not int for count in state.values())
    ):
        raise NotRestorable(f"the snapshot counts something else than {', '.join(expected)}")
    return dict(state)
