"""Pieces of episodes from one replay to another: what was seen arrives, what cannot be is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from manyview.data import ReplayBuffer, SegmentError
from manyview.data.chunks import append_chunk, pack_chunk, unpack_chunk
from manyview.data.n_step import compute_lengths
from manyview.data.segment_format import pack_segment
from manyview.envs.wrappers.observation import FrameStack
from tests.support.replay import NoiseEnv, RecordedSteps, get_newest_frames, make_replay_buffer, play_steps

STACK = 3


def lived_in_pieces(lengths: list[int], *, seed: int) -> tuple[list[bytes], list[RecordedSteps]]:
    """Steps of one stream of episodes, packed in pieces of so many."""
    env = FrameStack(NoiseEnv(), STACK)
    replay = make_replay_buffer(env, capacity=40, frame_stack=STACK)
    env.action_space.seed(seed)
    stream = play_steps(env, steps=sum(lengths), seed=seed)
    packed, lived = [], []
    observation: Any = None
    for length in lengths:
        begun, piece = replay.inserted, RecordedSteps()
        if observation is not None:
            replay.split_episode()
            piece.observations.append(observation)
            piece.outcomes.append(None)
            piece.indices.append(replay.inserted - 1 - begun)
        for _ in range(length):
            action, reward, terminated, observation, _ = next(stream)
            frames = get_newest_frames(observation, replay.views)
            if action is None:
                replay.start_episode(frames)
            else:
                piece.outcomes[-1] = (action, reward, terminated)
                replay.add(action, reward, terminated, frames)
            piece.observations.append({name: part.copy() for name, part in observation.items()})
            piece.outcomes.append(None)
            piece.indices.append(replay.inserted - 1 - begun)
        packed.append(pack_chunk(replay, begun))
        lived.append(piece)
    return packed, lived


def receiving(capacity: int) -> ReplayBuffer:
    return make_replay_buffer(FrameStack(NoiseEnv(), STACK), capacity=capacity, frame_stack=STACK)


@pytest.mark.parametrize("seed", range(5))
def test_what_was_seen_and_done_arrives_whoever_else_sends_between(seed: int) -> None:
    ours, lived = lived_in_pieces([7, 1, 12, 9, 20], seed=seed)
    others, _ = lived_in_pieces([11, 3, 5, 20, 2], seed=seed + 100)
    replay = receiving(300)
    for piece, other, mine in zip(ours, others, lived, strict=True):
        begun = replay.inserted
        append_chunk(replay, unpack_chunk(piece, replay))
        append_chunk(replay, unpack_chunk(other, replay))
        numbers = np.array(mine.indices) + begun
        views, mask = replay.stack_frames(numbers)
        names = [view.name for view in replay.views]
        np.testing.assert_array_equal(mask, mine.stack_masks())
        np.testing.assert_array_equal(views, np.where(mask[..., None, None, None], mine.stack_views(names), 0))
        for number, outcome in zip(numbers, mine.outcomes, strict=True):
            step = replay.steps[number]
            assert step["acted"] == (outcome is not None)
            if outcome is not None:
                assert (step["action"], step["terminated"]) == (outcome[0], outcome[2])
                assert step["reward"] == np.float32(outcome[1])


def test_no_window_reaches_from_one_piece_into_the_next() -> None:
    replay = receiving(400)
    borders = []
    for seed in range(6):
        for piece in lived_in_pieces([9, 14], seed=seed)[0]:
            append_chunk(replay, unpack_chunk(piece, replay))
            borders.append(replay.inserted)
    starts = np.flatnonzero(replay.steps["acted"][: replay.inserted])
    length = compute_lengths(replay, starts, n_step=3, horizon=replay.inserted)
    border = np.array(borders)[np.searchsorted(borders, starts, side="right")]  # where the next piece begins
    assert (starts + length < border).all()
    assert set(length[(starts == border - 2) & (border < replay.inserted)]) == {1}, "the last step is learned from too"
    assert {1, 2, 3} <= set(length)


def test_a_ring_that_wraps_keeps_the_newest_pieces() -> None:
    small, large = receiving(60), receiving(1000)
    for seed in range(8):
        for piece in lived_in_pieces([10, 10], seed=seed)[0]:
            for replay in (small, large):
                append_chunk(replay, unpack_chunk(piece, replay))
    numbers = np.arange(small.inserted - 60 + STACK, small.inserted)
    for one, other in zip(small.stack_frames(numbers), large.stack_frames(numbers), strict=True):
        np.testing.assert_array_equal(one, other)


def refers_back(steps: NDArray[Any]) -> None:
    steps["age"][0] = 1


def repeats_what_was_before(steps: NDArray[Any]) -> None:
    steps["repeated"][0] = True


def ends_in_the_middle(steps: NDArray[Any]) -> None:
    steps["acted"][-1] = True


def outlives_the_world(steps: NDArray[Any]) -> None:
    first = int(np.flatnonzero(steps["acted"][:-1] & steps["acted"][1:])[0])
    steps["terminated"][first] = True


def pays_nothing_that_is_a_number(steps: NDArray[Any]) -> None:
    steps["reward"][1] = np.nan


@pytest.mark.quality("S1")
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (refers_back, "before the chunk's start"),
        (repeats_what_was_before, "before the chunk's start"),
        (ends_in_the_middle, "next observation is missing"),
        (outlives_the_world, "continues after a termination"),
        (pays_nothing_that_is_a_number, "not finite"),
    ],
)
def test_a_piece_that_does_not_stand_for_itself_is_refused(spoil: Callable[[NDArray[Any]], None], reason: str) -> None:
    replay = receiving(100)
    piece = unpack_chunk(lived_in_pieces([12], seed=3)[0][0], replay)
    steps = piece.steps.copy()
    spoil(steps)
    with pytest.raises(SegmentError, match=reason):
        unpack_chunk(pack_segment(0, steps, piece.arrays)[0], replay)


@pytest.mark.quality("S2")
def test_pieces_for_other_cameras_and_damaged_ones_are_refused() -> None:
    packed = lived_in_pieces([12], seed=3)[0][0]
    other = make_replay_buffer(FrameStack(NoiseEnv(fill=(1, 2, 3)), STACK), capacity=100, frame_stack=STACK)
    assert unpack_chunk(packed, other).num_transitions == 10  # the same sizes: pixels do not say whose they are
    tiny = receiving(5)
    with pytest.raises(SegmentError, match="chunk is too long: expected at most 5 steps"):
        unpack_chunk(packed, tiny)
    for place in range(0, len(packed), 97):
        broken = bytearray(packed)
        broken[place] ^= 1
        with pytest.raises(SegmentError):
            unpack_chunk(bytes(broken), receiving(100))
    with pytest.raises(ValueError, match="invalid chunk: expected 1 to"):
        pack_chunk(receiving(10), 0)
