"""Validation of transitions and conversion to the layout of the replay buffer."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.data.derived_views import apply_bits, flatten_pixels, pack_bits
from manyview.envs.contract import (
    ContractError,
    describe,
    make_contract_error,
    validate_flag,
    validate_observation,
    validate_reward,
)
from manyview.envs.foreground import extract_foreground_mask
from manyview.envs.views import Observation, View, make_observation_space

ERROR_SOURCE = "replay"
MAX_REWARD = float(np.finfo(np.float32).max)


class StoredObservation(NamedTuple):
    """Observation in the layout of the replay buffer.

    F frames per view, the oldest first: the full stack, or 1 if only the newest frame was given.
    """

    mask: NDArray[np.bool_]  # [V]
    images: list[NDArray[np.uint8]]  # [F, C, H, W] per view
    stored: list[NDArray[np.uint8]]  # as stored: a derived view as bits [F, H * W / 8]

    @property
    def num_frames(self) -> int:
        """Number of frames F."""
        return len(self.images[0])

    def compute_ages(self) -> NDArray[np.uint8]:
        """Return the number [V] of earlier frames in each stack before they only repeat."""
        changes = [(frames[1:] != frames[:-1]).any((1, 2, 3)) for frames in self.images]  # [F - 1] each
        return np.array([len(changed) - changed.argmax() if changed.any() else 0 for changed in changes], np.uint8)


class TransitionCheck:
    """Checks of observations and outcomes; they raise `ContractError`, which names the field."""

    def __init__(self, views: Sequence[View], *, frame_stack: int, action: np.dtype[Any]) -> None:
        self._views, self._frame_stack = views, frame_stack
        self._cameras = {view.name: index for index, view in enumerate(views)}
        self._action_dtype, self._action_shape = action.base, action.shape
        self._spaces = {frames: make_observation_space(views, frame_stack=frames) for frames in (1, frame_stack)}

    def validate_observation(self, observation: Observation) -> StoredObservation:
        """Validate and convert an observation of full stacks, or of the newest frames alone."""
        first = self._views[0]
        image = observation.get(first.name) if isinstance(observation, dict) else None
        is_single_frame = isinstance(image, np.ndarray) and image.shape == first.shape
        space: Any = self._spaces[1 if is_single_frame else self._frame_stack]
        observation = validate_observation(observation, space, ERROR_SOURCE)
        images, stored = [], []
        for view in self._views:
            # Stacked frames are channels-first in memory, so this does not copy.
            frames = observation[view.name].transpose(2, 0, 1).reshape(-1, view.channels, view.height, view.width)
            images.append(frames)
            stored.append(frames if view.derived_from is None else _pack_foreground(frames, view))
        stored_observation = StoredObservation(observation["mask"].astype(np.bool_), images, stored)
        self.check_derived_views(stored_observation, stored_observation.mask)
        return stored_observation

    def check_derived_views(
        self, observation: StoredObservation, mask: NDArray[np.bool_], *, frames_back: int = 0
    ) -> None:
        """Raise `ContractError` if a derived view in `mask` cannot be rebuilt from its camera.

        `frames_back` selects the frame, 0 for the newest.
        """
        frame = observation.num_frames - 1 - frames_back
        for index, view in enumerate(self._views):
            if view.derived_from is None or not mask[index]:
                continue
            camera = self._cameras[view.derived_from]
            if not observation.mask[camera]:
                expected = f"an absent view, as its camera {view.derived_from!r} is absent"
                raise make_contract_error(ERROR_SOURCE, f"view {view.name!r}", expected, "a present one")
            image, expected_image = (
                flatten_pixels(observation.images[view_index][frame]) for view_index in (camera, index)
            )
            rebuilt = np.empty_like(expected_image)
            apply_bits(image, observation.stored[index][frame : frame + 1], view.fill, out=rebuilt)
            if not np.array_equal(rebuilt, expected_image):
                expected = f"the image of {view.derived_from!r} or the fill {view.fill} at every pixel"
                pixels = int((rebuilt != expected_image).any(1).sum())
                raise make_contract_error(
                    ERROR_SOURCE, f"view {view.name!r}", expected, f"{pixels} pixels that are neither"
                )

    def validate_outcome(self, action: Any, reward: Any, terminated: Any) -> dict[str, Any]:
        """Validate action, reward and termination; return them by the record's field names."""
        reward = validate_reward(reward, ERROR_SOURCE)
        if abs(reward) > MAX_REWARD:
            raise make_contract_error(ERROR_SOURCE, "reward", "a number that is finite in float32", str(reward))
        return {
            "action": self._validate_action(action),
            "reward": reward,
            "terminated": validate_flag(terminated, "terminated", ERROR_SOURCE),
            "acted": True,
        }

    def _validate_action(self, action: Any) -> NDArray[Any]:
        try:
            value = np.asarray(action)
        except (TypeError, ValueError, RuntimeError):  # not an array, such as rows of different lengths
            raise self._make_action_error("numbers", describe(action)) from None
        if value.shape != self._action_shape or value.dtype.kind not in "fiub":
            raise self._make_action_error("numbers", describe(action))
        with np.errstate(all="ignore"):
            converted = value.astype(self._action_dtype)
        if not (np.all(np.isfinite(value)) and np.all(np.isfinite(converted))):
            raise self._make_action_error("finite numbers", str(value))
        if self._action_dtype.kind in "iu" and not np.array_equal(converted, value):
            raise self._make_action_error(f"whole numbers within {self._action_dtype}", str(value))
        return converted

    def _make_action_error(self, expected: str, got: str) -> ContractError:
        return make_contract_error(ERROR_SOURCE, "action", f"{expected} of shape {self._action_shape}", got)


def _pack_foreground(frames: NDArray[np.uint8], view: View) -> NDArray[np.uint8]:
    return pack_bits(extract_foreground_mask(frames.transpose(0, 2, 3, 1), view.fill))
