"""Chunks of consecutive transitions, sent between replay buffers in the segment format.

A chunk is self-contained: it starts with the steps of a `ReplayBuffer.start_episode` call, and no step in it refers to
an earlier one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.data.layout import check_records
from manyview.data.replay_buffer import ReplayBuffer
from manyview.data.segment_format import MAX_SEGMENT_STEPS, Segment, SegmentError, pack_segment


class ChunkSteps(NamedTuple):
    """Unpacked chunk: records, frames and features of N steps."""

    steps: NDArray[Any]  # [N] records
    arrays: Sequence[NDArray[Any]]  # [N, ...], rows of `ReplayBuffer.rings`

    @property
    def num_transitions(self) -> int:
        """Number of steps with an action."""
        return int(self.steps["acted"].sum())

    @property
    def rewards(self) -> NDArray[np.float32]:
        """Rewards of the transitions."""
        rewards: NDArray[np.float32] = self.steps["reward"][self.steps["acted"]]
        return rewards

    @property
    def actions(self) -> NDArray[np.float32]:
        """Actions of the transitions."""
        actions: NDArray[np.float32] = self.steps["action"][self.steps["acted"]]
        return actions


def pack_chunk(replay: ReplayBuffer, start: int) -> bytes:
    """Pack the steps of a replay buffer from `start` on.

    `start` is the first step that a call of `ReplayBuffer.start_episode` wrote.
    """
    indices = range(start, replay.inserted)
    if not 0 < len(indices) <= min(MAX_SEGMENT_STEPS, replay.capacity):
        raise ValueError(
            f"invalid chunk: expected 1 to {min(MAX_SEGMENT_STEPS, replay.capacity)} steps, got {len(indices)}"
        )
    steps = replay.steps.take(indices, mode="wrap")
    return pack_segment(start, steps, [ring.take(indices, axis=0, mode="wrap") for ring in replay.rings])[0]


def unpack_chunk(data: bytes, replay: ReplayBuffer) -> ChunkSteps:
    """Unpack an untrusted chunk. Raises `SegmentError` if it does not fit `replay`."""
    segment = Segment(data)
    count = len(segment)
    if count > replay.capacity:
        raise SegmentError(f"chunk is too long: expected at most {replay.capacity} steps (the capacity), got {count}")
    chunk = ChunkSteps(
        np.zeros(count, replay.steps.dtype), [np.zeros((count, *ring.shape[1:]), ring.dtype) for ring in replay.rings]
    )
    segment.unpack_into(chunk.steps, chunk.arrays, oldest=segment.start)
    shift = -segment.start % count  # unpack_into writes step i to slot i % count, as into a ring
    chunk = ChunkSteps(np.roll(chunk.steps, shift), [np.roll(array, shift, axis=0) for array in chunk.arrays])
    check_self_contained(chunk.steps)
    return chunk


def append_chunk(replay: ReplayBuffer, chunk: ChunkSteps) -> None:
    """Append the steps of a chunk to a replay buffer."""
    slots = np.arange(replay.inserted, replay.inserted + len(chunk.steps)) % replay.capacity
    replay.steps[slots] = chunk.steps
    for ring, array in zip(replay.rings, chunk.arrays, strict=True):
        ring[slots] = array
    replay.inserted += len(chunk.steps)


def check_self_contained(steps: NDArray[Any]) -> None:
    """Raise `SegmentError` if reading a chunk with these records could reach steps before or after it."""
    try:
        check_records(steps)
    except ValueError as error:
        raise SegmentError(str(error)) from None
    positions = np.arange(len(steps))
    ages = [steps["age"].max(1), *([steps["vector_age"]] if "vector_age" in (steps.dtype.names or ()) else [])]
    if any((age > positions).any() for age in ages) or steps["repeated"][0]:
        raise SegmentError("invalid chunk: a step refers to steps before the chunk's start")
    if steps["acted"][-1]:
        raise SegmentError("invalid chunk: the last step has an action, but its next observation is missing")
    if (steps["terminated"] & steps["acted"])[:-1][steps["acted"][1:]].any():
        raise SegmentError("invalid chunk: the episode continues after a termination")
