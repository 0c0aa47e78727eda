"""Pieces of episodes on their way from one replay to another, in the bytes of a segment: packed, checksummed, refused.

A piece stands for itself: it begins with `Replay.begin`, and nothing in it reaches back to before that.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.data.layout import check_records
from manyview.data.replay import Replay
from manyview.data.segments import MOST_STEPS, Segment, SegmentError, pack


class Piece(NamedTuple):
    steps: NDArray[Any]  # [N] records
    frames: Sequence[NDArray[np.uint8]]  # [N, ...] of each view

    @property
    def transitions(self) -> int:
        return int(self.steps["acted"].sum())

    @property
    def rewards(self) -> NDArray[np.float32]:
        """Of its transitions."""
        found: NDArray[np.float32] = self.steps["reward"][self.steps["acted"]]
        return found

    @property
    def actions(self) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self.steps["action"][self.steps["acted"]]
        return found


def cut_piece(replay: Replay, begin: int) -> bytes:
    """What a replay has from step `begin` on, which was one that `Replay.begin` wrote first."""
    numbers = range(begin, replay.inserted)
    if not 0 < len(numbers) <= min(MOST_STEPS, replay.capacity):
        raise ValueError(f"a piece has from 1 to {min(MOST_STEPS, replay.capacity)} steps, got {len(numbers)}")
    steps = replay.steps.take(numbers, mode="wrap")
    return pack(begin, steps, [ring.take(numbers, axis=0, mode="wrap") for ring in replay.frames])[0]


def read_piece(packed: bytes, replay: Replay) -> Piece:
    """A piece for this replay, from whoever sent it; `SegmentError` says what is wrong with it."""
    segment = Segment(packed)
    count = len(segment)
    if count > replay.capacity:
        raise SegmentError(f"it has {count} steps, more than the replay keeps")
    piece = Piece(
        np.zeros(count, replay.steps.dtype), [np.zeros((count, *ring.shape[1:]), np.uint8) for ring in replay.frames]
    )
    segment.unpack(piece.steps, piece.frames, oldest=segment.begin)
    turned = -segment.begin % count  # unpacked by number, as into a ring
    piece = Piece(np.roll(piece.steps, turned), [np.roll(frames, turned, axis=0) for frames in piece.frames])
    _check(piece.steps)
    return piece


def add_piece(replay: Replay, piece: Piece) -> None:
    slots = np.arange(replay.inserted, replay.inserted + len(piece.steps)) % replay.capacity
    replay.steps[slots] = piece.steps
    for ring, frames in zip(replay.frames, piece.frames, strict=True):
        ring[slots] = frames
    replay.inserted += len(piece.steps)


def _check(steps: NDArray[Any]) -> None:
    """That nobody who reads the piece gets to what lies before or behind it."""
    try:
        check_records(steps)
    except ValueError as error:
        raise SegmentError(str(error)) from None
    places = np.arange(len(steps))
    if (steps["age"].max(1) > places).any() or steps["repeated"][0]:
        raise SegmentError("its steps refer to some before its begin")
    if steps["acted"][-1]:
        raise SegmentError("its last step was acted at, and nothing says what came of it")
    if (steps["terminated"] & steps["acted"])[:-1][steps["acted"][1:]].any():
        raise SegmentError("it goes on after the world has ended")
