"""Chunks sent from one replay buffer to another: exact transfer, and refusal of invalid ones."""

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


def record_chunks(lengths: list[int], *, seed: int) -> tuple[list[bytes], list[RecordedSteps]]:
    """Record one stream of episodes and pack it in chunks of these lengths."""
    env = FrameStack(NoiseEnv(), STACK)
    replay = make_replay_buffer(env, capacity=40, frame_stack=STACK)
    env.action_space.seed(seed)
    stream = play_steps(env, steps=sum(lengths), seed=seed)
    chunks, recordings = [], []
    observation: Any = None
    for length in lengths:
        start, recording = replay.inserted, RecordedSteps()
        if observation is not None:
            replay.split_episode()
            recording.observations.append(observation)
            recording.outcomes.append(None)
            recording.indices.append(replay.inserted - 1 - start)
        for _ in range(length):
            action, reward, terminated, observation, _ = next(stream)
            frames = get_newest_frames(observation, replay.views)
            if action is None:
                replay.start_episode(frames)
            else:
                recording.outcomes[-1] = (action, reward, terminated)
                replay.add(action, reward, terminated, frames)
            recording.observations.append({name: part.copy() for name, part in observation.items()})
            recording.outcomes.append(None)
            recording.indices.append(replay.inserted - 1 - start)
        chunks.append(pack_chunk(replay, start))
        recordings.append(recording)
    return chunks, recordings


def make_receiver(capacity: int) -> ReplayBuffer:
    return make_replay_buffer(FrameStack(NoiseEnv(), STACK), capacity=capacity, frame_stack=STACK)


@pytest.mark.parametrize("seed", range(5))
def test_recorded_steps_arrive_exactly_between_chunks_of_another_sender(seed: int) -> None:
    chunks, recordings = record_chunks([7, 1, 12, 9, 20], seed=seed)
    other_chunks, _ = record_chunks([11, 3, 5, 20, 2], seed=seed + 100)
    replay = make_receiver(300)
    for chunk, other_chunk, recording in zip(chunks, other_chunks, recordings, strict=True):
        start = replay.inserted
        append_chunk(replay, unpack_chunk(chunk, replay))
        append_chunk(replay, unpack_chunk(other_chunk, replay))
        indices = np.array(recording.indices) + start
        views, mask = replay.stack_frames(indices)
        names = [view.name for view in replay.views]
        np.testing.assert_array_equal(mask, recording.stack_masks())
        np.testing.assert_array_equal(views, np.where(mask[..., None, None, None], recording.stack_views(names), 0))
        for index, outcome in zip(indices, recording.outcomes, strict=True):
            step = replay.steps[index]
            assert step["acted"] == (outcome is not None)
            if outcome is not None:
                assert (step["action"], step["terminated"]) == (outcome[0], outcome[2])
                assert step["reward"] == np.float32(outcome[1])


def test_no_window_crosses_the_border_of_a_chunk() -> None:
    replay = make_receiver(400)
    borders = []
    for seed in range(6):
        for chunk in record_chunks([9, 14], seed=seed)[0]:
            append_chunk(replay, unpack_chunk(chunk, replay))
            borders.append(replay.inserted)
    starts = np.flatnonzero(replay.steps["acted"][: replay.inserted])
    length = compute_lengths(replay, starts, n_step=3, horizon=replay.inserted)
    border = np.array(borders)[np.searchsorted(borders, starts, side="right")]  # where the next chunk starts
    assert (starts + length < border).all()
    assert set(length[(starts == border - 2) & (border < replay.inserted)]) == {1}, "the last step is learned from too"
    assert {1, 2, 3} <= set(length)


def test_a_ring_that_wraps_keeps_the_newest_chunks() -> None:
    small, large = make_receiver(60), make_receiver(1000)
    for seed in range(8):
        for chunk in record_chunks([10, 10], seed=seed)[0]:
            for replay in (small, large):
                append_chunk(replay, unpack_chunk(chunk, replay))
    indices = np.arange(small.inserted - 60 + STACK, small.inserted)
    for small_part, large_part in zip(small.stack_frames(indices), large.stack_frames(indices), strict=True):
        np.testing.assert_array_equal(small_part, large_part)


def refer_to_earlier_frames(steps: NDArray[Any]) -> None:
    steps["age"][0] = 1


def repeat_earlier_observation(steps: NDArray[Any]) -> None:
    steps["repeated"][0] = True


def end_without_next_observation(steps: NDArray[Any]) -> None:
    steps["acted"][-1] = True


def continue_after_termination(steps: NDArray[Any]) -> None:
    first = int(np.flatnonzero(steps["acted"][:-1] & steps["acted"][1:])[0])
    steps["terminated"][first] = True


def set_nan_reward(steps: NDArray[Any]) -> None:
    steps["reward"][1] = np.nan


@pytest.mark.quality("S1")
@pytest.mark.parametrize(
    ("corrupt", "reason"),
    [
        (refer_to_earlier_frames, "before the chunk's start"),
        (repeat_earlier_observation, "before the chunk's start"),
        (end_without_next_observation, "next observation is missing"),
        (continue_after_termination, "continues after a termination"),
        (set_nan_reward, "not finite"),
    ],
)
def test_an_inconsistent_chunk_is_refused(corrupt: Callable[[NDArray[Any]], None], reason: str) -> None:
    replay = make_receiver(100)
    chunk = unpack_chunk(record_chunks([12], seed=3)[0][0], replay)
    steps = chunk.steps.copy()
    corrupt(steps)
    with pytest.raises(SegmentError, match=reason):
        unpack_chunk(pack_segment(0, steps, chunk.arrays)[0], replay)


@pytest.mark.quality("S2")
def test_chunks_that_are_too_long_or_corrupted_are_refused() -> None:
    chunk = record_chunks([12], seed=3)[0][0]
    other_replay = make_replay_buffer(FrameStack(NoiseEnv(fill=(1, 2, 3)), STACK), capacity=100, frame_stack=STACK)
    assert unpack_chunk(chunk, other_replay).num_transitions == 10  # accepted, as the image sizes are the same
    small_replay = make_receiver(5)
    with pytest.raises(SegmentError, match="chunk is too long: expected at most 5 steps"):
        unpack_chunk(chunk, small_replay)
    for position in range(0, len(chunk), 97):
        corrupted_chunk = bytearray(chunk)
        corrupted_chunk[position] ^= 1
        with pytest.raises(SegmentError):
            unpack_chunk(bytes(corrupted_chunk), make_receiver(100))
    with pytest.raises(ValueError, match="invalid chunk: expected 1 to"):
        pack_chunk(make_receiver(10), 0)
