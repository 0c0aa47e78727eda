"""What somebody wants to add to the replay, checked and in the form in which it is kept."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.data.cutting import cut_out, flattened, packed
from manyview.envs.foreground import foreground
from manyview.envs.layers.boundary import (
    ContractError,
    checked_flag,
    checked_observation,
    checked_reward,
    described,
    refuse,
)
from manyview.envs.views import Observation, View, observation_space

NAME = "replay"
LARGEST_REWARD = float(np.finfo(np.float32).max)


class Entry(NamedTuple):
    """An observation. Its frames are the oldest first: as many as are stacked, or one if only the newest was given."""

    mask: NDArray[np.bool_]  # [V]
    pictures: list[NDArray[np.uint8]]  # [F, C, H, W] of each view
    kept: list[NDArray[np.uint8]]  # as the replay keeps them: a derived view as bits [F, H * W / 8]

    @property
    def frames(self) -> int:
        return len(self.pictures[0])

    def ages(self) -> NDArray[np.uint8]:
        """How far the history of each view goes back in its stack: older frames than that repeat the one before."""
        changes = [(frames[1:] != frames[:-1]).any((1, 2, 3)) for frames in self.pictures]  # [F - 1] each
        return np.array([len(changed) - changed.argmax() if changed.any() else 0 for changed in changes], np.uint8)


class EntryCheck:
    """Refuses what must not enter, with a `ContractError` that names the field."""

    def __init__(self, views: Sequence[View], *, frame_stack: int, action: np.dtype[Any]) -> None:
        self._views, self._frame_stack = views, frame_stack
        self._cameras = {view.name: place for place, view in enumerate(views)}
        self._action_dtype, self._action_shape = action.base, action.shape
        self._spaces = {frames: observation_space(views, frame_stack=frames) for frames in (1, frame_stack)}

    def observation(self, observation: Observation) -> Entry:
        """Stacked as environments give it, or the newest frames alone."""
        first = self._views[0]
        picture = observation.get(first.name) if isinstance(observation, dict) else None
        single = isinstance(picture, np.ndarray) and picture.shape == first.shape
        space: Any = self._spaces[1 if single else self._frame_stack]
        observation = checked_observation(observation, space, NAME)
        pictures, kept = [], []
        for view in self._views:
            # Channels first is how stacked frames lie in memory, so this copies nothing.
            frames = observation[view.name].transpose(2, 0, 1).reshape(-1, view.channels, view.height, view.width)
            pictures.append(frames)
            kept.append(frames if view.derived_from is None else _bits(frames, view))
        entry = Entry(observation["mask"].astype(np.bool_), pictures, kept)
        self.derived_views(entry, entry.mask)
        return entry

    def derived_views(self, entry: Entry, mask: NDArray[np.bool_], *, back: int = 0) -> None:
        """That the derived views of `mask` can be made again of what is kept, so many frames back."""
        at = entry.frames - 1 - back
        for place, view in enumerate(self._views):
            if view.derived_from is None or not mask[place]:
                continue
            camera = self._cameras[view.derived_from]
            if not entry.mask[camera]:
                expected = f"to be absent when its camera {view.derived_from!r} is"
                raise refuse(NAME, f"view {view.name!r}", expected, "it present")
            picture, shown = (flattened(entry.pictures[one][at]) for one in (camera, place))
            again = np.empty_like(shown)
            cut_out(picture, entry.kept[place][at : at + 1], view.fill, out=again)
            if not np.array_equal(again, shown):
                expected = f"the picture of {view.derived_from!r}, or the fill {view.fill}, at every pixel"
                pixels = int((again != shown).any(1).sum())
                raise refuse(NAME, f"view {view.name!r}", expected, f"{pixels} pixels that are neither")

    def outcome(self, action: Any, reward: Any, terminated: Any) -> dict[str, Any]:
        """What was done and what came of it, by the names of the record's fields."""
        reward = checked_reward(reward, NAME)
        if abs(reward) > LARGEST_REWARD:
            raise refuse(NAME, "reward", "a number that is finite as float32", str(reward))
        return {
            "action": self._checked_action(action),
            "reward": reward,
            "terminated": checked_flag(terminated, "terminated", NAME),
            "acted": True,
        }

    def _checked_action(self, action: Any) -> NDArray[Any]:
        try:
            value = np.asarray(action)
        except (TypeError, ValueError, RuntimeError):  # what numpy cannot take, such as rows of different lengths
            raise self._refused_action("numbers", described(action)) from None
        if value.shape != self._action_shape or value.dtype.kind not in "fiub":
            raise self._refused_action("numbers", described(action))
        with np.errstate(all="ignore"):
            kept = value.astype(self._action_dtype)
        if not (np.all(np.isfinite(value)) and np.all(np.isfinite(kept))):
            raise self._refused_action("finite numbers", str(value))
        if self._action_dtype.kind in "iu" and not np.array_equal(kept, value):
            raise self._refused_action(f"whole numbers within {self._action_dtype}", str(value))
        return kept

    def _refused_action(self, expected: str, got: str) -> ContractError:
        return refuse(NAME, "action", f"{expected} of shape {self._action_shape}", got)


def _bits(frames: NDArray[np.uint8], view: View) -> NDArray[np.uint8]:
    return packed(foreground(frames.transpose(0, 2, 3, 1), view.fill))
