"""What is sampled never crosses an episode end, a truncation, a gap or the ring's head; every window is as likely."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from manyview.data import Batch, ReplayBuffer, Sampler
from manyview.data.n_step import compute_lengths, count_reserve_steps, find_oldest_start, min_capacity, sample_windows
from manyview.envs import MASK, View
from manyview.envs.views import Observation
from quality.plugin import Figure

GAMMA = 0.9


def picture_of(number: int) -> Observation:
    """A frame of 2 x 2 pixels that is the number of its step."""
    return {"number": np.array([number], "<u4").view(np.uint8).reshape(2, 2, 1), MASK: np.ones(1, np.int8)}


def numbers_in(views: Any) -> NDArray[np.int64]:
    """The step numbers [B, S] that the pictures [B, 1, S, 2, 2] of a batch are."""
    pixels = np.ascontiguousarray(views.numpy()[:, 0]).reshape(*views.shape[:1], views.shape[2], 4)
    return pixels.view("<u4")[..., 0].astype(np.int64)


class Counted:
    """A replay whose frames are their own numbers, beside a plain list of what every step was."""

    def __init__(self, *, capacity: int, frame_stack: int) -> None:
        view = View("number", 2, 2, 1, fill=(0,))
        self.replay = ReplayBuffer([view], action_shape=(1,), capacity=capacity, frame_stack=frame_stack)
        self.first: list[int] = []
        """Of every step: the first one of its episode."""
        self.terminated: list[bool] = []
        self.rewards: list[float] = []

    def begin(self) -> None:
        self.replay.start_episode(picture_of(len(self.first)))
        self.first.append(len(self.first))
        self._not_acted()

    def add(self, *, terminated: bool) -> None:
        number = len(self.first)
        reward = float((number * 7919) % 101) / 8
        self.replay.add([number], reward, terminated, picture_of(number))
        self.terminated[-1], self.rewards[-1] = terminated, reward
        self.first.append(self.first[-1])
        self._not_acted()

    def _not_acted(self) -> None:
        self.terminated.append(False)
        self.rewards.append(0.0)

    def live(self, rng: np.random.Generator, *, steps: int, longest: int) -> None:
        """Episodes of up to `longest` steps, none at all included; some end the world, the others just stop."""
        while len(self.first) < steps:
            self.begin()
            for left in range(int(rng.integers(longest + 1)), 0, -1):
                self.add(terminated=left == 1 and bool(rng.integers(2)))


@dataclass(frozen=True)
class Truth:
    """The same as arrays, to judge batches by."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    rewards: NDArray[np.float64]

    @classmethod
    def of(cls, counted: Counted) -> "Truth":
        first = np.array(counted.first)
        last = np.searchsorted(first, first, side="right") - 1  # of its episode, as far as that has come
        return cls(first, last, np.array(counted.terminated), np.array(counted.rewards))

    def assert_holds(self, batch: Batch, *, replay: ReplayBuffer, n_step: int, inserted: int) -> None:
        """Every window of the batch, against what really happened."""
        start = batch.indices.numpy()
        end = numbers_in(batch.next_views)[:, -1]
        length = end - start
        assert (start >= max(0, inserted - replay.capacity)).all(), "of what the ring has"
        assert (self.last[start] > start).all(), "something was done there"
        assert (end == np.minimum(start + n_step, self.last[start])).all(), "n steps, or to the end of the episode"
        assert (self.first[end] == self.first[start]).all(), "of one episode"
        for numbers, shown in ((start, batch.views), (end, batch.next_views)):
            back = np.arange(replay.frame_stack - 1, -1, -1)
            expected = np.maximum(numbers[:, None] - back, self.first[numbers][:, None])
            assert (numbers_in(shown) == expected).all(), "the stack does not reach over the beginning"
        ahead = np.arange(n_step)
        inside = ahead < length[:, None]
        steps = np.minimum(start[:, None] + ahead, len(self.rewards) - 1)
        expected_reward = (np.where(inside, self.rewards[steps], 0) * GAMMA**ahead).sum(1)
        assert np.allclose(batch.reward_ext.numpy(), expected_reward, rtol=1e-6, atol=1e-6)
        dies = (inside & self.terminated[steps]).any(1)
        assert np.allclose(batch.discount.numpy(), np.where(dies, 0, GAMMA**length), rtol=1e-6)
        assert (batch.action.numpy()[:, 0] == start + 1).all()


@pytest.mark.quality("S10")
@pytest.mark.parametrize(
    ("capacity", "longest", "frame_stack", "n_step"),
    [
        (20_000, 1000, 3, 3),  # as in training
        (5000, 40, 3, 3),
        (500, 12, 4, 10),  # episodes shorter than a window, a ring that wraps many times
        (100, 2, 3, 5),
        (64, 30, 1, 1),
        (12, 6, 3, 3),
    ],
)
def test_sampled_windows_cross_nothing(
    capacity: int, longest: int, frame_stack: int, n_step: int, figure: Figure
) -> None:
    """A million windows, while the ring fills and wraps."""
    counted, rng = Counted(capacity=capacity, frame_stack=frame_stack), np.random.default_rng(capacity)
    batches = 50
    sampler = Sampler(counted.replay, batch_size=20_000, n_step=n_step, discount=GAMMA, seed=capacity)
    windows = 0
    for batch in range(batches):
        counted.live(rng, steps=max(10 * n_step, 3 * capacity * (batch + 1) // batches), longest=longest)
        drawn = sampler.sample()
        Truth.of(counted).assert_holds(drawn, replay=counted.replay, n_step=n_step, inserted=counted.replay.inserted)
        windows += len(drawn.indices)
    figure(windows, "windows")


@settings(max_examples=150, deadline=None)
@given(
    frame_stack=st.integers(1, 4),
    n_step=st.integers(1, 5),
    spare=st.integers(0, 30),
    longest=st.integers(1, 12),
    seed=st.integers(0, 2**16),
)
def test_tiny_rings_that_wrap_cross_nothing_either(
    frame_stack: int, n_step: int, spare: int, longest: int, seed: int
) -> None:
    capacity = min_capacity(frame_stack=frame_stack, n_step=n_step) + spare
    counted, rng = Counted(capacity=capacity, frame_stack=frame_stack), np.random.default_rng(seed)
    sampler = Sampler(counted.replay, batch_size=32, n_step=n_step, discount=GAMMA, seed=seed)
    for _ in range(12):
        counted.live(rng, steps=len(counted.first) + int(rng.integers(1, 12)), longest=longest)
        # A run of empty episodes leaves nothing to sample; a whole window's worth of steps always does.
        counted.begin()
        for _ in range(n_step):
            counted.add(terminated=False)
        drawn = sampler.sample()
        Truth.of(counted).assert_holds(drawn, replay=counted.replay, n_step=n_step, inserted=counted.replay.inserted)


def every_window(counted: Counted, *, n_step: int, horizon: int) -> set[int]:
    """The starts that may be drawn, by the definition."""
    last = Truth.of(counted).last.tolist()
    return {
        start
        for start in range(find_oldest_start(counted.replay, horizon), horizon)
        if last[start] > start and (last[start] >= start + n_step or last[start] < horizon - 1)
    }


@pytest.mark.parametrize(("capacity", "steps"), [(300, 120), (300, 300), (300, 1000)])
@pytest.mark.parametrize("n_step", [1, 3])
def test_every_window_is_drawn_and_as_often_as_any_other(capacity: int, steps: int, n_step: int) -> None:
    counted = Counted(capacity=capacity, frame_stack=2)
    counted.live(np.random.default_rng(0), steps=steps, longest=15)
    expected = every_window(counted, n_step=n_step, horizon=counted.replay.inserted)
    draws = 2000 * len(expected)
    drawn, _ = sample_windows(
        counted.replay, np.random.default_rng(1), count=draws, n_step=n_step, horizon=counted.replay.inserted
    )
    starts, counts = np.unique(drawn, return_counts=True)
    assert set(starts.tolist()) == expected
    chi_square = ((counts - 2000.0) ** 2 / 2000.0).sum()
    degrees = len(expected) - 1
    assert abs(chi_square - degrees) < 5 * np.sqrt(2 * degrees)


def test_rare_windows_are_found_and_are_as_likely() -> None:
    counted = Counted(capacity=200_000, frame_stack=1)
    for _ in range(2):
        for _ in range(20_000):
            counted.begin()
        counted.add(terminated=False)
        counted.begin()
    drawn, _ = sample_windows(
        counted.replay, np.random.default_rng(0), count=64, n_step=1, horizon=counted.replay.inserted
    )
    assert set(drawn.tolist()) == {19_999, 40_001}
    assert 16 <= (drawn == 19_999).sum() <= 48


@pytest.mark.parametrize("episodes", [0, 1, 3])
def test_a_replay_without_a_window_says_so(episodes: int) -> None:
    counted = Counted(capacity=100, frame_stack=1)
    for _ in range(episodes):
        counted.begin()
    sampler = Sampler(counted.replay, batch_size=4, n_step=3, discount=GAMMA, seed=0)
    with pytest.raises(RuntimeError, match=f"no window of up to 3 steps among the {episodes} steps"):
        sampler.sample()
    counted.begin()
    for _ in range(4):
        counted.add(terminated=False)
    assert set(sampler.sample().indices.tolist()) <= {episodes, episodes + 1}


def test_a_window_waits_until_its_episode_has_come_so_far_or_has_ended() -> None:
    counted = Counted(capacity=100, frame_stack=1)

    def starts() -> list[int]:
        numbers = np.arange(counted.replay.inserted)
        found = compute_lengths(counted.replay, numbers, n_step=3, horizon=counted.replay.inserted)
        return [int(number) for number in numbers[found > 0]]

    counted.begin()
    counted.add(terminated=False)
    counted.add(terminated=False)
    assert starts() == []
    counted.add(terminated=False)
    assert starts() == [0]
    counted.begin()
    assert starts() == [0, 1, 2]


def test_the_newest_that_came_after_the_horizon_is_not_looked_at() -> None:
    counted = Counted(capacity=100, frame_stack=1)
    counted.begin()
    for _ in range(10):
        counted.add(terminated=False)
    horizon = counted.replay.inserted

    def draws() -> list[int]:
        drawn = sample_windows(counted.replay, np.random.default_rng(0), count=50, n_step=2, horizon=horizon)
        return [int(start) for start in drawn.start]

    before = draws()
    counted.add(terminated=True)
    counted.begin()
    counted.add(terminated=False)
    assert draws() == before


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_what_may_be_drawn_stays_while_the_reserve_is_filled_and_the_step_before_it_does_not(frame_stack: int) -> None:
    counted = Counted(capacity=640, frame_stack=frame_stack)
    replay = counted.replay
    counted.begin()
    for _ in range(1000):
        counted.add(terminated=False)
    horizon = replay.inserted
    numbers = np.arange(find_oldest_start(replay, horizon) - 1, horizon)
    before, _ = replay.stack_frames(numbers)
    for _ in range(count_reserve_steps(640) - 1):
        counted.add(terminated=False)
    replay.frames[0][replay.inserted % 640] = 255  # the next step is just being written
    after, _ = replay.stack_frames(numbers)
    assert np.array_equal(after[1:], before[1:])
    assert not np.array_equal(after[0], before[0])


@pytest.mark.parametrize("n_step", [1, 3, 20])
@pytest.mark.parametrize("frame_stack", [1, 3])
def test_the_smallest_ring_that_is_allowed_has_windows_and_a_smaller_one_is_refused(
    frame_stack: int, n_step: int
) -> None:
    capacity = min_capacity(frame_stack=frame_stack, n_step=n_step)
    counted = Counted(capacity=capacity, frame_stack=frame_stack)
    counted.begin()
    for _ in range(3 * capacity):
        counted.add(terminated=False)
    sampler = Sampler(counted.replay, batch_size=8, n_step=n_step, discount=GAMMA, seed=0)
    assert sampler.sample().indices.unique().numel() == 1
    smaller = Counted(capacity=capacity - 1, frame_stack=frame_stack)
    with pytest.raises(ValueError, match=f"at least {capacity} steps for .*, got {capacity - 1}"):
        Sampler(smaller.replay, batch_size=8, n_step=n_step, discount=GAMMA, seed=0)


def test_the_reserve_is_a_small_part_of_the_ring() -> None:
    assert [count_reserve_steps(capacity) for capacity in (10, 640, 10_000, 500_000)] == [1, 10, 156, 1024]
