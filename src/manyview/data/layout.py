"""Memory layout of the replay buffer, and its size in bytes.

A step is an observation with the action taken there and its outcome: one record of small fields, state vectors among
them, one frame per view, and optionally features. A camera's frame is stored as pixels, a derived view's as bits that
select pixels of its camera's frame. Features are G groups of P numbers, computed once when the step is stored.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from manyview.data.state_vectors import make_vector_fields
from manyview.envs.contract import MAX_STATE_VALUE
from manyview.envs.views import View, validate_views
from manyview.utils.resources import (
    RESERVED_FRACTION,
    InsufficientSpaceError,
    get_free_disk_bytes,
    get_free_memory_bytes,
)
from manyview.utils.text import format_bytes

MAX_AGE = int(np.iinfo(np.uint8).max)
"""Largest value of the `age` field, and so of `frame_stack`."""
MAX_FEATURE = 1e15
"""Largest absolute value of a feature: squared distances stay finite in float32."""
FeatureShape = tuple[int, int]
"""G groups of P numbers. The groups are one of all views, one per view, or one per view and then one of all views."""


def validate_replay_views(views: Sequence[View]) -> tuple[View, ...]:
    """Return the views as a tuple. Raises ValueError if they do not fit one batch tensor."""
    views = validate_views(views)
    shapes = {view.name: view.shape for view in views}
    if len(set(shapes.values())) > 1:
        raise ValueError(
            f"views differ in size: expected one size, got {shapes}. A batch is one tensor [B, V, C, H, W]: set "
            "env.image_size, or give all cameras one size when you make the environment."
        )
    for view in views:
        if view.derived_from is None:
            continue
        camera = next(other for other in views if other.name == view.derived_from)
        if camera.derived_from is not None:
            raise ValueError(f"{view.name!r} is derived from {camera.name!r}: expected a camera, got a derived view")
        if len(view.fill) != view.channels:
            raise ValueError(
                f"fill of {view.name!r} does not fit: expected {view.channels} channels, got {len(view.fill)} in "
                f"{view.fill}"
            )
    return views


def make_step_dtype(
    views: Sequence[View], action_shape: tuple[int, ...], action_dtype: DTypeLike, vector_size: int = 0
) -> np.dtype[Any]:
    """Return the record dtype of a step with `vector_size` numbers; its fields are nearly always read together."""
    return np.dtype(
        [
            ("action", action_dtype, action_shape),
            ("reward", np.float32),
            ("acted", np.bool_),  # False for an episode's last observation, and until an action is added
            ("terminated", np.bool_),
            ("repeated", np.bool_),  # same observation as the step before: all cameras were absent
            ("mask", np.bool_, (len(views),)),
            ("age", np.uint8, (len(views),)),  # steps since the view last appeared; bounds its frame stack
            *make_vector_fields(vector_size),
        ]
    )


def check_records(records: NDArray[Any]) -> None:
    """Raise ValueError if records hold non-finite numbers, or flags other than 0 and 1."""
    for name in records.dtype.names or ():
        values = records[name]
        if name == "vectors" and not (np.abs(values) <= MAX_STATE_VALUE).all():
            raise ValueError(f"invalid step: vectors: expected finite numbers of at most {MAX_STATE_VALUE:g}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ValueError(f"invalid step: {name} is not finite")
        if values.dtype.kind == "b" and (np.ascontiguousarray(values).view(np.uint8) > 1).any():
            raise ValueError(f"invalid step: {name} is a flag: expected 0 or 1, got another byte")


def check_features(features: NDArray[np.float32]) -> None:
    """Raise ValueError if features are not finite or exceed `MAX_FEATURE`."""
    if not (np.abs(features) <= MAX_FEATURE).all():
        raise ValueError(f"invalid step: features: expected finite numbers of at most {MAX_FEATURE:g}")


def validate_feature_shape(shape: FeatureShape, num_views: int) -> FeatureShape:
    """Return the shape. Raises ValueError if its groups do not fit the views."""
    groups, size = shape
    if groups not in (1, num_views, num_views + 1) or size < 1:
        raise ValueError(
            f"invalid feature_shape: expected 1, {num_views} (views) or {num_views + 1} groups of at least 1 number, "
            f"got {shape}"
        )
    return shape


def stored_frame_shape(view: View) -> tuple[int, ...]:
    """Return the stored frame's shape: [C, H, W] of a camera, [H * W / 8] of a derived view."""
    if view.derived_from is None:
        return (view.channels, view.height, view.width)
    return (math.ceil(view.height * view.width / 8),)


def compute_step_bytes(
    views: Sequence[View],
    action_shape: tuple[int, ...],
    action_dtype: DTypeLike = np.float32,
    feature_shape: FeatureShape | None = None,
    vector_size: int = 0,
) -> int:
    """Return the bytes of one step.

    An episode takes one step more than it has transitions, for its last observation.
    """
    frames = sum(math.prod(stored_frame_shape(view)) for view in views)
    features = 0 if feature_shape is None else math.prod(feature_shape) * np.dtype(np.float32).itemsize
    return make_step_dtype(views, action_shape, action_dtype, vector_size).itemsize + frames + features


def compute_buffer_bytes(
    views: Sequence[View],
    *,
    action_shape: tuple[int, ...],
    action_dtype: DTypeLike = np.float32,
    capacity: int,
    feature_shape: FeatureShape | None = None,
    vector_size: int = 0,
) -> int:
    """Return the bytes of a full replay buffer, in memory or in its directory."""
    return capacity * compute_step_bytes(views, action_shape, action_dtype, feature_shape, vector_size)


def compute_batch_bytes(views: Sequence[View], *, frame_stack: int, batch_size: int) -> int:
    """Return the bytes of the images of one batch, s and s'.

    A sampler holds one batch, or two with `prefetch`.
    """
    return 2 * batch_size * frame_stack * sum(math.prod(view.shape) for view in views)


def check_replay_fits(
    replay_bytes: int, *, capacity: int, directory: Path | None, other_memory_bytes: int = 0, root: Path = Path("/")
) -> None:
    """Raise `InsufficientSpaceError` if a replay buffer of `replay_bytes` does not fit.

    `other_memory_bytes` is the memory that the rest of the run needs. With a `directory` the buffer is on disk, and
    only the rest must fit in memory.
    """
    _check_replay_memory(replay_bytes, other_memory_bytes, capacity, directory, get_free_memory_bytes(root))
    if directory is None:
        return
    free = get_free_disk_bytes(directory)
    if replay_bytes > (1 - RESERVED_FRACTION) * free:
        raise InsufficientSpaceError(
            f"a replay buffer of {capacity:,} steps needs {format_bytes(replay_bytes)} of disk space, "
            f"and {format_bytes(free)} are free in {directory}: "
            f"{_format_max_steps((1 - RESERVED_FRACTION) * free, replay_bytes, capacity)}. Lower the capacity, or use "
            "a directory on another disk."
        )


def _check_replay_memory(
    replay_bytes: int, other_memory_bytes: int, capacity: int, directory: Path | None, free: int | None
) -> None:
    needed = other_memory_bytes + (replay_bytes if directory is None else 0)
    if free is None:
        return
    usable = (1 - RESERVED_FRACTION) * free
    if needed <= usable:
        return
    if directory is not None:
        raise InsufficientSpaceError(
            f"the run needs {format_bytes(needed)} of memory beside the replay buffer on disk, and "
            f"{format_bytes(free)} are free. Lower the batch size."
        )
    beside = f" beside {format_bytes(other_memory_bytes)} for the rest" if other_memory_bytes else ""
    raise InsufficientSpaceError(
        f"a replay buffer of {capacity:,} steps needs {format_bytes(replay_bytes)} of memory{beside}, "
        f"and {format_bytes(free)} are free: "
        f"{_format_max_steps(usable - other_memory_bytes, replay_bytes, capacity)}. Lower the capacity, or store it in "
        "a directory on a disk."
    )


def _format_max_steps(free_bytes: float, replay_bytes: int, capacity: int) -> str:
    max_steps = max(0, int(free_bytes / replay_bytes * capacity))
    return f"at most {max_steps:,} steps fit" if max_steps else "not one step fits"


def allocate_ring(directory: Path | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Allocate an array of zeros in memory, or in an unnamed file of `directory`."""
    if directory is None:
        return np.zeros(shape, dtype)  # pages are allocated when written
    directory.mkdir(parents=True, exist_ok=True)
    size = int(np.prod(shape)) * dtype.itemsize
    with TemporaryFile(dir=directory) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # otherwise a full disk would later kill the process
        return np.memmap(file, dtype, "w+", shape=shape).view(np.ndarray)
