"""What the replay keeps of a step, and how many bytes that takes.

A step is an observation, and what was done there and came of it: one record of small things, and a frame for each view.
A camera's frame is kept as pixels, a derived view's as bits, of which its camera's frame makes pixels again.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from manyview.envs.views import View, validate_views
from manyview.utils.resources import (
    RESERVED_FRACTION,
    InsufficientSpaceError,
    get_free_disk_bytes,
    get_free_memory_bytes,
)
from manyview.utils.text import format_bytes

MAX_AGE = int(np.iinfo(np.uint8).max)


def validate_replay_views(views: Sequence[View]) -> tuple[View, ...]:
    """The views, or an error that says why no batch can be made of them."""
    views = validate_views(views)
    shapes = {view.name: view.shape for view in views}
    if len(set(shapes.values())) > 1:
        raise ValueError(
            f"a batch is one tensor [B, V, C, H, W], so all views must have one size, got {shapes}: give the cameras "
            "one size when you make the environment"
        )
    for view in views:
        if view.derived_from is None:
            continue
        camera = next(other for other in views if other.name == view.derived_from)
        if camera.derived_from is not None:
            raise ValueError(f"{view.name!r} is derived from {camera.name!r}, which is no camera but derived itself")
        if len(view.fill) != view.channels:
            raise ValueError(
                f"{view.name!r} has {view.channels} channels, but its fill {view.fill} has {len(view.fill)}"
            )
    return views


def make_step_dtype(views: Sequence[View], action_shape: tuple[int, ...], action_dtype: DTypeLike) -> np.dtype[Any]:
    """The small things of a step, side by side: one of them is rarely wanted without the others."""
    return np.dtype(
        [
            ("action", action_dtype, action_shape),
            ("reward", np.float32),
            ("acted", np.bool_),  # False for an episode's last observation, and while nothing was done yet
            ("terminated", np.bool_),
            ("repeated", np.bool_),  # the observation before once more, since no camera saw anything
            ("mask", np.bool_, (len(views),)),
            ("age", np.uint8, (len(views),)),  # how long the view has been present without a break, for its stack
        ]
    )


def check_records(records: NDArray[Any]) -> None:
    """Refuse bytes from outside that no step has: numbers that are not finite, truth values other than 0 and 1."""
    for name in records.dtype.names or ():
        values = records[name]
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ValueError(f"{name} of a step is not finite")
        if values.dtype.kind == "b" and (np.ascontiguousarray(values).view(np.uint8) > 1).any():
            raise ValueError(f"{name} of a step is neither true nor false")


def stored_frame_shape(view: View) -> tuple[int, ...]:
    if view.derived_from is None:
        return (view.channels, view.height, view.width)
    return (math.ceil(view.height * view.width / 8),)


def compute_step_bytes(
    views: Sequence[View], action_shape: tuple[int, ...], action_dtype: DTypeLike = np.float32
) -> int:
    """What a step takes. An episode takes one step more than it has transitions: its last observation."""
    frames = sum(math.prod(stored_frame_shape(view)) for view in views)
    return make_step_dtype(views, action_shape, action_dtype).itemsize + frames


def compute_buffer_bytes(
    views: Sequence[View], *, action_shape: tuple[int, ...], action_dtype: DTypeLike = np.float32, capacity: int
) -> int:
    """What a full replay takes, in memory or in its folder."""
    return capacity * compute_step_bytes(views, action_shape, action_dtype)


def compute_batch_bytes(views: Sequence[View], *, frame_stack: int, batch_size: int) -> int:
    """What the pictures of one batch take, s and s'. A sampler keeps one batch, or two if it works ahead."""
    return 2 * batch_size * frame_stack * sum(math.prod(view.shape) for view in views)


def check_replay_fits(
    replay_bytes: int, *, capacity: int, directory: Path | None, other_memory_bytes: int = 0, root: Path = Path("/")
) -> None:
    """Refuse a replay of so many bytes that does not fit; `memory_bytes` is what else the run will take.

    With a folder it goes to the disk, and only the rest must fit into memory.
    """
    _check_replay_memory(replay_bytes, other_memory_bytes, capacity, directory, get_free_memory_bytes(root))
    if directory is None:
        return
    free = get_free_disk_bytes(directory)
    if replay_bytes > (1 - RESERVED_FRACTION) * free:
        raise InsufficientSpaceError(
            f"a replay of {capacity:,} steps needs {format_bytes(replay_bytes)}, "
            f"and {format_bytes(free)} are free in {directory}: "
            f"{_format_max_steps((1 - RESERVED_FRACTION) * free, replay_bytes, capacity)}, or give it another folder"
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
            f"{format_bytes(needed)} of memory are needed beside the replay on disk, and {format_bytes(free)} are free"
        )
    beside = f" beside {format_bytes(other_memory_bytes)} for the rest" if other_memory_bytes else ""
    raise InsufficientSpaceError(
        f"a replay of {capacity:,} steps needs {format_bytes(replay_bytes)} of memory{beside}, "
        f"and {format_bytes(free)} are free: "
        f"{_format_max_steps(usable - other_memory_bytes, replay_bytes, capacity)}, or give it a folder on a disk"
    )


def _format_max_steps(free_bytes: float, replay_bytes: int, capacity: int) -> str:
    fits = max(0, int(free_bytes / replay_bytes * capacity))
    return f"at most {fits:,} steps fit" if fits else "not one step fits"
