"""Validation of transitions and conversion to the layout of the replay buffer."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.data.derived_views import apply_bits, flatten_pixels, pack_bits
from manyview.data.layout import FeatureShape, check_features
from manyview.data.state_vectors import concatenate_vectors
from manyview.envs.contract import (
    ContractError,
    describe,
    make_contract_error,
    validate_flag,
    validate_observation,
    validate_reward,
)
from manyview.envs.foreground import extract_foreground_mask
from manyview.envs.views import MASK, Observation, StateVector, View, make_observation_space

ERROR_SOURCE = "replay"
MAX_REWARD = float(np.finfo(np.float32).max)


class StoredObservation(NamedTuple):
    """An observation of single frames in the form in which the replay buffer stores it."""

    mask: NDArray[np.bool_]  # [V]
    frames: list[NDArray[np.uint8]]  # of each view [C, H, W]; bits [H * W / 8] of a derived view
    vectors: NDArray[np.float32] | None = None  # [D], all state vectors


def validate_features(features: Any, shape: FeatureShape) -> NDArray[np.float32]:
    """Return the features of one step [G, P] from those of a batch of one [1, G, P]."""
    value = np.asarray(features)
    if value.shape != (1, *shape) or value.dtype != np.float32:
        raise make_contract_error(ERROR_SOURCE, "features", f"float32 numbers of shape {(1, *shape)}", describe(value))
    try:
        check_features(value)
    except ValueError as error:
        raise make_contract_error(ERROR_SOURCE, "features", "finite numbers", str(error)) from None
    return cast("NDArray[np.float32]", value[0])


class TransitionCheck:
    """Validate transitions before they are stored; `ContractError` names the invalid field."""

    def __init__(
        self, views: Sequence[View], *, action: np.dtype[Any], state_vectors: Sequence[StateVector] = ()
    ) -> None:
        self._views, self._state_vectors = views, state_vectors
        self._space = cast("spaces.Dict", make_observation_space(views, vectors=state_vectors))
        self._action_dtype, self._action_shape = action.base, action.shape

    def validate_observation(self, observation: Observation) -> StoredObservation:
        """Return an observation of single frames as it is stored."""
        observation = validate_observation(observation, self._space, ERROR_SOURCE)
        mask = observation[MASK].astype(np.bool_)
        images = {view.name: observation[view.name].transpose(2, 0, 1) for view in self._views}
        present = {view.name: bool(shown) for view, shown in zip(self._views, mask, strict=True)}
        frames = []
        for view in self._views:
            if view.derived_from is None:
                frames.append(images[view.name])
                continue
            bits = pack_bits(extract_foreground_mask(observation[view.name][None], view.fill))[0]
            if present[view.name]:
                self._check_derived_view(view, images, bits, has_camera=present[view.derived_from])
            frames.append(bits)
        vectors = concatenate_vectors(observation, self._state_vectors) if self._state_vectors else None
        return StoredObservation(mask, frames, vectors)

    def _check_derived_view(
        self, view: View, images: Mapping[str, NDArray[np.uint8]], bits: NDArray[np.uint8], *, has_camera: bool
    ) -> None:
        """Check that a derived view can be rebuilt from its camera's frame and the stored bits."""
        camera = view.derived_from or ""
        if not has_camera:
            expected = f"an absent view, as its camera {camera!r} is absent"
            raise make_contract_error(ERROR_SOURCE, f"view {view.name!r}", expected, "a present one")
        pixels, expected_pixels = flatten_pixels(images[camera][None]), flatten_pixels(images[view.name][None])
        rebuilt = np.empty_like(expected_pixels)
        apply_bits(pixels, bits[None], view.fill, out=rebuilt)
        if not np.array_equal(rebuilt, expected_pixels):
            expected = f"the image of {camera!r} or the fill {view.fill} at every pixel"
            count = int((rebuilt != expected_pixels).any(1).sum())
            raise make_contract_error(ERROR_SOURCE, f"view {view.name!r}", expected, f"{count} pixels that are neither")

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
