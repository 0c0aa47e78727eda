"""Sequences: consecutive steps of one episode, with the replay buffer's observations."""

from typing import Any

import numpy as np
import pytest
import torch

from manyview.data import Batch, ReplayBuffer, Sampler
from manyview.data.n_step import Windows, split_windows
from manyview.data.sequences import pack_sequences
from manyview.envs import wrap
from tests.support.replay import NoiseEnv, are_batches_equal, clone_batch, make_replay_buffer, record_steps

GAMMA, LENGTH = 0.9, 5


def make_replay(*, max_length: int = 9, capacity: int = 200, steps: int = 150) -> ReplayBuffer:
    """Return a replay buffer of episodes of 1 to `max_length` steps."""
    env = wrap(NoiseEnv(max_steps=max_length), frame_stack=3)
    replay = make_replay_buffer(env, capacity=capacity, frame_stack=3)
    record_steps(env, replay, steps=steps)
    return replay


def make_sampler(replay: ReplayBuffer, *, n_step: int = 1, prefetch: bool = False, batch_size: int = 40) -> Sampler:
    return Sampler(
        replay,
        batch_size=batch_size,
        n_step=n_step,
        discount=GAMMA,
        seed=0,
        prefetch=prefetch,
        sequence_length=LENGTH,
    )


def split_batch(batch: Batch) -> list[slice]:
    """Return the rows of each sequence, by a loop over the positions."""
    assert batch.positions is not None
    starts = [row for row, position in enumerate(batch.positions[:, 0].tolist()) if position == 0]
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(batch.action)], strict=True)]


@pytest.mark.parametrize("n_step", [1, 2, 7])
@pytest.mark.parametrize("steps", [150, 500])
def test_each_row_is_the_return_from_its_step_within_sequence_and_episode(n_step: int, steps: int) -> None:
    replay = make_replay(steps=steps)
    records: Any = replay.steps
    lengths = set()
    for batch in (make_sampler(replay, n_step=n_step).sample() for _ in range(3)):
        sequences = split_batch(batch)
        assert len(sequences) == 8
        for rows in sequences:
            indices, next_indices = batch.indices[rows].tolist(), batch.next_indices[rows].tolist()
            count = len(indices)
            lengths.add(count)
            assert indices == list(range(indices[0], indices[0] + count))
            ends = not records["acted"][(indices[-1] + 1) % replay.capacity]
            assert count == LENGTH - 1 or ends, "a shorter sequence ends with its episode"
            for position, (row, index) in enumerate(zip(range(rows.start, rows.stop), indices, strict=True)):
                last = min(position + n_step, count)
                steps_taken = [records[number % replay.capacity] for number in range(index, index + last - position)]
                assert all(step["acted"] for step in steps_taken)
                reward_sum = sum(GAMMA**power * float(step["reward"]) for power, step in enumerate(steps_taken))
                is_terminal = any(step["terminated"] for step in steps_taken)
                assert next_indices[position] == index + last - position
                assert batch.reward_ext[row].item() == pytest.approx(reward_sum, abs=1e-6)
                expected = 0 if is_terminal else GAMMA ** (last - position)
                assert batch.discount[row].item() == pytest.approx(expected)
    assert lengths >= {1, LENGTH - 1}


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_observations_of_a_sequence_are_consecutive_steps_with_the_action_before(n_step: int) -> None:
    replay = make_replay()
    batch = make_sampler(replay, n_step=n_step).sample()
    batch = batch._replace(action=batch.action.float().unsqueeze(1))  # continuous actions are [B, A]
    sequences = pack_sequences(batch)
    packed_positions = {
        (number, time): position
        for position, (number, time) in enumerate(
            zip(sequences.sequence.tolist(), sequences.time.tolist(), strict=True)
        )
    }
    sequence_rows = split_batch(batch)
    assert len(packed_positions) == len(batch.action) + len(sequence_rows)
    for number, rows in enumerate(sequence_rows):
        first, count = batch.indices[rows][0].item(), rows.stop - rows.start
        views, mask = replay.stack_frames(np.arange(int(first), int(first) + count + 1))
        positions = [packed_positions[number, time] for time in range(count + 1)]
        assert np.array_equal(sequences.views[positions].numpy(), views)
        assert np.array_equal(sequences.mask[positions].numpy(), mask)
        assert sequences.previous_action[positions].flatten().tolist() == [0.0, *batch.action[rows].flatten().tolist()]
    assert torch.equal(sequences.views[sequences.rows], batch.views)
    assert torch.equal(sequences.views[sequences.next_rows], batch.next_views)
    assert torch.equal(sequences.mask[sequences.next_rows], batch.next_mask)


def test_padding_is_zero_after_the_end_of_a_sequence_and_dropped_again() -> None:
    batch = make_sampler(make_replay()).sample()
    sequences = pack_sequences(batch._replace(action=batch.action.float().unsqueeze(1)))
    values = torch.randn(len(sequences.time), 3, requires_grad=True)
    padded = sequences.pad(values)
    assert padded.shape == (LENGTH, 8, 3)
    for number, rows in enumerate(split_batch(batch)):
        length = rows.stop - rows.start + 1
        assert (padded[:length, number] != 0).all()
        assert (padded[length:, number] == 0).all()
    assert torch.equal(sequences.unpad(padded), values)
    sequences.unpad(padded).sum().backward()
    assert values.grad is not None
    assert (values.grad == 1).all()


def test_windows_are_split_into_one_window_per_step() -> None:
    windows, positions = split_windows(Windows(np.array([10, 50]), np.array([3, 1])), n_step=2)
    assert windows.start.tolist() == [10, 11, 12, 50]
    assert windows.length.tolist() == [2, 2, 1, 1]
    assert positions.tolist() == [[0, 2], [1, 3], [2, 3], [0, 1]]


def test_a_prefetching_or_resumed_sampler_gives_the_same_sequences() -> None:
    replay = make_replay()
    samplers = [make_sampler(replay, prefetch=prefetch) for prefetch in (False, True)]
    batches = [[clone_batch(sampler.sample()) for _ in range(3)] for sampler in samplers]
    assert all(are_batches_equal(*pair) for pair in zip(*batches, strict=True))
    resumed = make_sampler(replay)
    resumed.load_state({"drawn": 2, "horizon": replay.inserted})
    assert are_batches_equal(resumed.sample(), batches[0][2])
    for sampler in samplers:
        sampler.close()


def test_sequences_that_do_not_fit_are_refused() -> None:
    replay = make_replay(capacity=100)
    with pytest.raises(ValueError, match=r"invalid sequence_length: expected 2 to 4 \(batch_size\), got 5"):
        make_sampler(replay, batch_size=4)
    with pytest.raises(ValueError, match="replay buffer is too small"):
        make_sampler(make_replay(capacity=6, steps=5))
    batch = Sampler(replay, batch_size=4, n_step=1, discount=GAMMA, seed=0).sample()
    with pytest.raises(ValueError, match="expected positions, got None"):
        pack_sequences(batch)
