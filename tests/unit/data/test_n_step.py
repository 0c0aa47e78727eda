"""N-step windows: none crosses an episode end or the ring's head, all are equally likely."""

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


def make_numbered_observation(number: int) -> Observation:
    """Return an observation whose frame of 2 x 2 pixels encodes its step number."""
    return {"number": np.array([number], "<u4").view(np.uint8).reshape(2, 2, 1), MASK: np.ones(1, np.int8)}


def read_numbers(views: Any) -> NDArray[np.int64]:
    """Return the step numbers [B, S] that images [B, 1, S, 2, 2] encode."""
    pixels = np.ascontiguousarray(views.numpy()[:, 0]).reshape(*views.shape[:1], views.shape[2], 4)
    return pixels.view("<u4")[..., 0].astype(np.int64)


class StepRecorder:
    """Replay buffer whose frames encode their step number, with plain lists of all steps."""

    def __init__(self, *, capacity: int, frame_stack: int) -> None:
        view = View("number", 2, 2, 1, fill=(0,))
        self.replay = ReplayBuffer([view], action_shape=(1,), capacity=capacity, frame_stack=frame_stack)
        self.episode_start: list[int] = []
        """First step of the episode of each step."""
        self.terminated: list[bool] = []
        self.rewards: list[float] = []

    def start_episode(self) -> None:
        self.replay.start_episode(make_numbered_observation(len(self.episode_start)))
        self.episode_start.append(len(self.episode_start))
        self._append_empty_outcome()

    def add(self, *, terminated: bool) -> None:
        number = len(self.episode_start)
        reward = float((number * 7919) % 101) / 8
        self.replay.add([number], reward, terminated, make_numbered_observation(number))
        self.terminated[-1], self.rewards[-1] = terminated, reward
        self.episode_start.append(self.episode_start[-1])
        self._append_empty_outcome()

    def _append_empty_outcome(self) -> None:
        self.terminated.append(False)
        self.rewards.append(0.0)

    def play_episodes(self, rng: np.random.Generator, *, steps: int, max_length: int) -> None:
        """Add episodes of 0 to `max_length` steps until there are `steps`; about half terminate."""
        while len(self.episode_start) < steps:
            self.start_episode()
            for steps_left in range(int(rng.integers(max_length + 1)), 0, -1):
                self.add(terminated=steps_left == 1 and bool(rng.integers(2)))


@dataclass(frozen=True)
class ReferenceSteps:
    """Steps of a recorder as arrays, to check batches against."""

    episode_start: NDArray[np.int64]
    episode_end: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    rewards: NDArray[np.float64]

    @classmethod
    def from_recorder(cls, recorder: StepRecorder) -> "ReferenceSteps":
        episode_start = np.array(recorder.episode_start)
        episode_end = np.searchsorted(episode_start, episode_start, side="right") - 1  # of its episode so far
        return cls(episode_start, episode_end, np.array(recorder.terminated), np.array(recorder.rewards))

    def assert_matches(self, batch: Batch, *, replay: ReplayBuffer, n_step: int, inserted: int) -> None:
        """Assert that every window of a batch equals the recorded steps."""
        start = batch.indices.numpy()
        end = read_numbers(batch.next_views)[:, -1]
        length = end - start
        assert (start >= max(0, inserted - replay.capacity)).all(), "the start is still in the ring"
        assert (self.episode_end[start] > start).all(), "an action follows the start"
        assert (end == np.minimum(start + n_step, self.episode_end[start])).all(), (
            "n steps, or to the end of the episode"
        )
        assert (self.episode_start[end] == self.episode_start[start]).all(), "start and end are in one episode"
        for numbers, views in ((start, batch.views), (end, batch.next_views)):
            frame_offsets = np.arange(replay.frame_stack - 1, -1, -1)
            expected = np.maximum(numbers[:, None] - frame_offsets, self.episode_start[numbers][:, None])
            assert (read_numbers(views) == expected).all(), "the stack does not cross the start of the episode"
        step_offsets = np.arange(n_step)
        is_inside = step_offsets < length[:, None]
        steps = np.minimum(start[:, None] + step_offsets, len(self.rewards) - 1)
        expected_reward = (np.where(is_inside, self.rewards[steps], 0) * GAMMA**step_offsets).sum(1)
        assert np.allclose(batch.reward_ext.numpy(), expected_reward, rtol=1e-6, atol=1e-6)
        is_terminal = (is_inside & self.terminated[steps]).any(1)
        assert np.allclose(batch.discount.numpy(), np.where(is_terminal, 0, GAMMA**length), rtol=1e-6)
        assert (batch.action.numpy()[:, 0] == start + 1).all()


@pytest.mark.quality("S10")
@pytest.mark.parametrize(
    ("capacity", "max_length", "frame_stack", "n_step"),
    [
        (20_000, 1000, 3, 3),  # as in training
        (5000, 40, 3, 3),
        (500, 12, 4, 10),  # episodes shorter than a window, a ring that wraps many times
        (100, 2, 3, 5),
        (64, 30, 1, 1),
        (12, 6, 3, 3),
    ],
)
def test_sampled_windows_stay_within_an_episode_and_the_ring(
    capacity: int, max_length: int, frame_stack: int, n_step: int, figure: Figure
) -> None:
    """A million windows are checked while the ring fills and wraps."""
    recorder, rng = StepRecorder(capacity=capacity, frame_stack=frame_stack), np.random.default_rng(capacity)
    num_batches = 50
    sampler = Sampler(recorder.replay, batch_size=20_000, n_step=n_step, discount=GAMMA, seed=capacity)
    num_windows = 0
    for index in range(num_batches):
        recorder.play_episodes(
            rng, steps=max(10 * n_step, 3 * capacity * (index + 1) // num_batches), max_length=max_length
        )
        batch = sampler.sample()
        ReferenceSteps.from_recorder(recorder).assert_matches(
            batch, replay=recorder.replay, n_step=n_step, inserted=recorder.replay.inserted
        )
        num_windows += len(batch.indices)
    figure(num_windows, "windows")


@settings(max_examples=150, deadline=None)
@given(
    frame_stack=st.integers(1, 4),
    n_step=st.integers(1, 5),
    spare=st.integers(0, 30),
    max_length=st.integers(1, 12),
    seed=st.integers(0, 2**16),
)
def test_windows_of_tiny_rings_stay_within_an_episode_and_the_ring(
    frame_stack: int, n_step: int, spare: int, max_length: int, seed: int
) -> None:
    capacity = min_capacity(frame_stack=frame_stack, n_step=n_step) + spare
    recorder, rng = StepRecorder(capacity=capacity, frame_stack=frame_stack), np.random.default_rng(seed)
    sampler = Sampler(recorder.replay, batch_size=32, n_step=n_step, discount=GAMMA, seed=seed)
    for _ in range(12):
        recorder.play_episodes(rng, steps=len(recorder.episode_start) + int(rng.integers(1, 12)), max_length=max_length)
        # Empty episodes alone have no window, so add the steps of one.
        recorder.start_episode()
        for _ in range(n_step):
            recorder.add(terminated=False)
        batch = sampler.sample()
        ReferenceSteps.from_recorder(recorder).assert_matches(
            batch, replay=recorder.replay, n_step=n_step, inserted=recorder.replay.inserted
        )


def find_window_starts(recorder: StepRecorder, *, n_step: int, horizon: int) -> set[int]:
    """Return the starts that may be drawn, by the definition."""
    episode_end = ReferenceSteps.from_recorder(recorder).episode_end.tolist()
    return {
        start
        for start in range(find_oldest_start(recorder.replay, horizon), horizon)
        if episode_end[start] > start and (episode_end[start] >= start + n_step or episode_end[start] < horizon - 1)
    }


@pytest.mark.parametrize(("capacity", "steps"), [(300, 120), (300, 300), (300, 1000)])
@pytest.mark.parametrize("n_step", [1, 3])
def test_all_windows_are_drawn_equally_often(capacity: int, steps: int, n_step: int) -> None:
    recorder = StepRecorder(capacity=capacity, frame_stack=2)
    recorder.play_episodes(np.random.default_rng(0), steps=steps, max_length=15)
    expected = find_window_starts(recorder, n_step=n_step, horizon=recorder.replay.inserted)
    num_draws = 2000 * len(expected)
    sampled_starts, _ = sample_windows(
        recorder.replay, np.random.default_rng(1), count=num_draws, n_step=n_step, horizon=recorder.replay.inserted
    )
    starts, counts = np.unique(sampled_starts, return_counts=True)
    assert set(starts.tolist()) == expected
    chi_square = ((counts - 2000.0) ** 2 / 2000.0).sum()
    degrees = len(expected) - 1
    assert abs(chi_square - degrees) < 5 * np.sqrt(2 * degrees)


def test_rare_windows_are_drawn_equally_often() -> None:
    recorder = StepRecorder(capacity=200_000, frame_stack=1)
    for _ in range(2):
        for _ in range(20_000):
            recorder.start_episode()
        recorder.add(terminated=False)
        recorder.start_episode()
    starts, _ = sample_windows(
        recorder.replay, np.random.default_rng(0), count=64, n_step=1, horizon=recorder.replay.inserted
    )
    assert set(starts.tolist()) == {19_999, 40_001}
    assert 16 <= (starts == 19_999).sum() <= 48


@pytest.mark.parametrize("episodes", [0, 1, 3])
def test_sampling_without_a_window_is_an_error(episodes: int) -> None:
    recorder = StepRecorder(capacity=100, frame_stack=1)
    for _ in range(episodes):
        recorder.start_episode()
    sampler = Sampler(recorder.replay, batch_size=4, n_step=3, discount=GAMMA, seed=0)
    with pytest.raises(RuntimeError, match=f"no window of up to 3 steps among the {episodes} steps"):
        sampler.sample()
    recorder.start_episode()
    for _ in range(4):
        recorder.add(terminated=False)
    assert set(sampler.sample().indices.tolist()) <= {episodes, episodes + 1}


def test_a_window_is_available_once_it_is_complete_or_its_episode_has_ended() -> None:
    recorder = StepRecorder(capacity=100, frame_stack=1)

    def find_starts() -> list[int]:
        numbers = np.arange(recorder.replay.inserted)
        lengths = compute_lengths(recorder.replay, numbers, n_step=3, horizon=recorder.replay.inserted)
        return [int(number) for number in numbers[lengths > 0]]

    recorder.start_episode()
    recorder.add(terminated=False)
    recorder.add(terminated=False)
    assert find_starts() == []
    recorder.add(terminated=False)
    assert find_starts() == [0]
    recorder.start_episode()
    assert find_starts() == [0, 1, 2]


def test_steps_after_the_horizon_do_not_change_the_draws() -> None:
    recorder = StepRecorder(capacity=100, frame_stack=1)
    recorder.start_episode()
    for _ in range(10):
        recorder.add(terminated=False)
    horizon = recorder.replay.inserted

    def draw_starts() -> list[int]:
        windows = sample_windows(recorder.replay, np.random.default_rng(0), count=50, n_step=2, horizon=horizon)
        return [int(start) for start in windows.start]

    before = draw_starts()
    recorder.add(terminated=True)
    recorder.start_episode()
    recorder.add(terminated=False)
    assert draw_starts() == before


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_filling_the_reserve_overwrites_no_step_that_may_be_drawn(frame_stack: int) -> None:
    recorder = StepRecorder(capacity=640, frame_stack=frame_stack)
    replay = recorder.replay
    recorder.start_episode()
    for _ in range(1000):
        recorder.add(terminated=False)
    horizon = replay.inserted
    numbers = np.arange(find_oldest_start(replay, horizon) - 1, horizon)
    before, _ = replay.stack_frames(numbers)
    for _ in range(count_reserve_steps(640) - 1):
        recorder.add(terminated=False)
    replay.frames[0][replay.inserted % 640] = 255  # the next step is just being written
    after, _ = replay.stack_frames(numbers)
    assert np.array_equal(after[1:], before[1:])
    assert not np.array_equal(after[0], before[0])


@pytest.mark.parametrize("n_step", [1, 3, 20])
@pytest.mark.parametrize("frame_stack", [1, 3])
def test_the_minimum_capacity_has_windows_and_a_smaller_one_is_refused(frame_stack: int, n_step: int) -> None:
    capacity = min_capacity(frame_stack=frame_stack, n_step=n_step)
    recorder = StepRecorder(capacity=capacity, frame_stack=frame_stack)
    recorder.start_episode()
    for _ in range(3 * capacity):
        recorder.add(terminated=False)
    sampler = Sampler(recorder.replay, batch_size=8, n_step=n_step, discount=GAMMA, seed=0)
    assert sampler.sample().indices.unique().numel() == 1
    small_recorder = StepRecorder(capacity=capacity - 1, frame_stack=frame_stack)
    with pytest.raises(ValueError, match=f"at least {capacity} steps for .*, got {capacity - 1}"):
        Sampler(small_recorder.replay, batch_size=8, n_step=n_step, discount=GAMMA, seed=0)


def test_the_reserve_is_a_small_part_of_the_ring() -> None:
    assert [count_reserve_steps(capacity) for capacity in (10, 640, 10_000, 500_000)] == [1, 10, 156, 1024]
