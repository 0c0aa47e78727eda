"""Turn observations into the network's inputs: checks, resizing, frame stacks and the mask."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .frame_stack import append_frame
from .spec import MASK, PolicySpec, VectorSpec, ViewSpec

Observation = Mapping[str, NDArray[Any] | None]
"""Image [H, W, C] uint8 by view, None or left out if it is missing; array [size] by state vector.

A key `mask` may mark present views, as in the observations of environments.
"""
Entries = dict[str, NDArray[Any] | None]


class InputBuilder:
    """Frame stacks of several robots, and the network's inputs made of them."""

    def __init__(self, spec: PolicySpec, num_robots: int) -> None:
        self._spec = spec
        sizes = dict.fromkeys((view.name for view in spec.views), spec.frame_stack)
        self._stack_sizes = sizes | dict.fromkeys((vector.name for vector in spec.vectors), spec.vector_stack)
        self._tensors = {name: tensor for name, tensor in spec.inputs.items() if name in self._stack_sizes}
        self._stacks: list[Entries] = [{} for _ in range(num_robots)]

    def reset(self, robots: Iterable[int]) -> None:
        """Start an episode of these robots: their next frames are the first of their stacks."""
        for robot in robots:
            self._stacks[robot] = {}

    def append(self, observations: Sequence[Observation]) -> dict[str, NDArray[Any]]:
        """Append an observation per robot and return the inputs [robots, ...] by name, without recurrent state.

        Raises `ValueError` for an invalid observation, and changes nothing then. Without any view a policy cannot act
        either: that is a `ValueError`, after which the robot's stacks start anew.
        """
        entries = [read_observation(observation, self._spec) for observation in observations]
        for robot, frames in enumerate(entries):
            self._check_sight(robot, frames)
        for stacks, frames in zip(self._stacks, entries, strict=True):
            for name, frame in frames.items():
                stacks[name] = append_frame(stacks.get(name), frame, self._stack_sizes[name])
        inputs = {
            name: _join([stacks[name] for stacks in self._stacks], tensor.shape, tensor.kind)
            for name, tensor in self._tensors.items()
        }
        present = [[stacks[view.name] is not None for view in self._spec.views] for stacks in self._stacks]
        return {**inputs, MASK: np.array(present, np.bool_)}

    def _check_sight(self, robot: int, frames: Entries) -> None:
        names = [view.name for view in self._spec.views]
        if all(frames[name] is None for name in names):
            self._stacks[robot] = {}  # no stack spans a missing frame
            raise ValueError(
                f"no view of robot {robot} is present: expected at least one of {', '.join(names)}. No action was "
                "computed, for any robot of a batch. Stop the robot, or repeat its last action, until a camera is back"
            )


def read_observation(observation: Observation, spec: PolicySpec) -> Entries:
    """Return a frame [1, ...] per view and state vector, None for a missing view; `ValueError` if it is invalid."""
    names = [view.name for view in spec.views]
    expected = [*names, *(vector.name for vector in spec.vectors)]
    if not isinstance(observation, Mapping):
        raise ValueError(
            f"invalid observation: expected a dict with {', '.join(expected)}, got {type(observation).__name__}"
        )
    for name in observation:
        if name != MASK and name not in expected:
            raise ValueError(f"unknown entry {name!r} of the observation: expected some of {', '.join(expected)}")
    masked = _read_mask(observation.get(MASK), names)
    entries: Entries = {}
    for view in spec.views:
        image = None if view.name in masked else observation.get(view.name)
        entries[view.name] = None if image is None else _read_image(image, view, spec)
    for vector in spec.vectors:
        entries[vector.name] = _read_vector(observation.get(vector.name), vector)
    return entries


def _read_mask(mask: Any, names: Sequence[str]) -> set[str]:
    """Return the views that a mask [V] marks as missing."""
    if mask is None:
        return set()
    present = np.asarray(mask)
    if present.shape != (len(names),) or not np.isin(present, (0, 1)).all():
        raise ValueError(
            f"invalid mask: expected 0 or 1 for each of {', '.join(names)}, got {present.dtype} of shape "
            f"{present.shape}"
        )
    return {name for name, is_present in zip(names, present, strict=True) if not is_present}


def _read_image(image: Any, view: ViewSpec, spec: PolicySpec) -> NDArray[np.uint8]:
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
        got = f"{image.dtype}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ValueError(f"invalid image of view {view.name!r}: expected an array of uint8, got {got}")
    if image.ndim == 2 and view.channels == 1:
        image = image[:, :, None]
    is_sized = image.shape == view.shape
    if image.ndim != 3 or image.shape[2] != view.channels or 0 in image.shape or not (is_sized or spec.resize):
        expected = f"{list(view.shape)}" if spec.resize is None else f"[height, width, {view.channels}]"
        hint = "" if spec.resize else ". The run did not resize its images, so the policy does not either"
        raise ValueError(
            f"invalid image of view {view.name!r}: expected the shape {expected}, got {list(image.shape)}{hint}"
        )
    if not is_sized and spec.resize is not None:
        image = spec.resize.apply(image, view)
    frame: NDArray[np.uint8] = image[None]
    return frame


def _read_vector(value: Any, vector: VectorSpec) -> NDArray[np.float32]:
    if value is None:
        raise ValueError(
            f"missing state vector {vector.name!r}: expected {vector.size} numbers. Only views can be missing"
        )
    array = np.asarray(value)
    if array.shape != (vector.size,) or array.dtype.kind not in "fiu":
        raise ValueError(
            f"invalid state vector {vector.name!r}: expected numbers of shape [{vector.size}], got {array.dtype} of "
            f"shape {list(array.shape)}"
        )
    numbers = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError(f"invalid state vector {vector.name!r}: expected finite numbers, got {array}")
    return numbers[None]


def _join(stacks: Sequence[NDArray[Any] | None], shape: tuple[int, ...], kind: str) -> NDArray[Any]:
    """Return the stacks of all robots as one array [robots, ...], zeros where a view is missing."""
    arrays = [np.zeros(shape, kind) if stack is None else stack for stack in stacks]
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)
