"""Pieces of episodes on their way from one replay to another, in the bytes of a segment: packed, checksummed, refused.

A piece stands for itself: it begins with `ReplayBuffer.start_episode`, and nothing in it reaches back to before that.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.data.layout import check_records
from manyview.data.replay_buffer import ReplayBuffer
from manyview.data.segments import MAX_SEGMENT_STEPS, Segment, SegmentError, pack_segment


class ChunkSteps(NamedTuple):
    steps: NDArray[Any]  # [N] records
    frames: Sequence[NDArray[np.uint8]]  # [N, ...] of each view

    @property
    def num_transitions(self) -> int:
        return int(self.steps["acted"].sum())

    @property
    def rewards(self) -> NDArray[np.float32]:
        """Of its transitions."""
        rewards: NDArray[np.float32] = self.steps["reward"][self.steps["acted"]]
        return rewards

    @property
    def actions(self) -> NDArray[np.float32]:
        actions: NDArray[np.float32] = self.steps["action"][self.steps["acted"]]
        return actions


def pack_chunk(replay: ReplayBuffer, start: int) -> bytes:
    """What a replay has from step `start` on, which was one that `ReplayBuffer.start_episode` wrote first."""
    indices = range(start, replay.inserted)
    if not 0 < len(indices) <= min(MAX_SEGMENT_STEPS, replay.capacity):
        raise ValueError(f"a piece has from 1 to {min(MAX_SEGMENT_STEPS, replay.capacity)} steps, got {len(indices)}")
    steps = replay.steps.take(indices, mode="wrap")
    return pack_segment(start, steps, [ring.take(indices, axis=0, mode="wrap") for ring in replay.frames])[0]


def unpack_chunk(data: bytes, replay: ReplayBuffer) -> ChunkSteps:
    """A piece for this replay, from whoever sent it; `SegmentError` says what is wrong with it."""
    segment = Segment(data)
    count = len(segment)
    if count > replay.capacity:
        raise SegmentError(f"it has {count} steps, more than the replay keeps")
    chunk = ChunkSteps(
        np.zeros(count, replay.steps.dtype), [np.zeros((count, *ring.shape[1:]), np.uint8) for ring in replay.frames]
    )
    segment.unpack_into(chunk.steps, chunk.frames, oldest=segment.start)
    shift = -segment.start % count  # unpacked by number, as into a ring
    chunk = ChunkSteps(np.roll(chunk.steps, shift), [np.roll(frames, shift, axis=0) for frames in chunk.frames])
    _check_self_contained(chunk.steps)
    return chunk


def append_chunk(replay: ReplayBuffer, chunk: ChunkSteps) -> None:
    slots = np.arange(replay.inserted, replay.inserted + len(chunk.steps)) % replay.capacity
    replay.steps[slots] = chunk.steps
    for ring, frames in zip(replay.frames, chunk.frames, strict=True):
        ring[slots] = frames
    replay.inserted += len(chunk.steps)


def _check_self_contained(steps: NDArray[Any]) -> None:
    """That nobody who reads the piece gets to what lies before or behind it."""
    try:
        check_records(steps)
    except ValueError as error:
        raise SegmentError(str(error)) from None
    positions = np.arange(len(steps))
    if (steps["age"].max(1) > positions).any() or steps["repeated"][0]:
        raise SegmentError("its steps refer to some before its begin")
    if steps["acted"][-1]:
        raise SegmentError("its last step was acted at, and nothing says what came of it")
    if (steps["terminated"] & steps["acted"])[:-1][steps["acted"][1:]].any():
        raise SegmentError("it goes on after the world has ended")
