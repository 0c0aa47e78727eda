"""Replay buffer: every stack built by index equals the observation at the time of acting."""

from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyview.data import ReplayBuffer
from manyview.envs import Fault, View, make, wrap
from manyview.envs.views import Observation
from manyview.envs.wrappers.faults import FaultDuration, FaultKind
from tests.support.replay import NoiseEnv, RecordedSteps, get_newest_frames, make_replay_buffer, record_steps

# Injected camera faults also give view warnings.
pytestmark = pytest.mark.filterwarnings("ignore::manyview.envs.ViewWarning")

FAULTS = [
    Fault(view=view, kind=kind, lasts=lasts, probability=0.04)
    for view in ("side", "back")
    for kind in get_args(FaultKind)
    for lasts in ("frame", "episode")
]
ALL_GONE = [Fault(view=view, kind="gone", at_step=4) for view in ("side", "back")]


def assert_stacks_match(replay: ReplayBuffer, recorded: RecordedSteps) -> int:
    """Assert that the ring holds the recorded steps; return the number of compared ones."""
    oldest = max(0, replay.inserted - replay.capacity)
    if oldest:
        oldest += replay.frame_stack  # the earlier frames of the oldest steps are overwritten
    positions = [position for position, index in enumerate(recorded.indices) if index >= oldest]
    indices = np.array([recorded.indices[position] for position in positions])
    views, masks = replay.stack_frames(indices)
    assert np.array_equal(masks, recorded.stack_masks()[positions])
    assert np.array_equal(views, recorded.stack_views([view.name for view in replay.views])[positions])
    for position, index in zip(positions, indices, strict=True):
        step, outcome = replay.steps[index % replay.capacity], recorded.outcomes[position]
        assert step["acted"] == (outcome is not None)
        if outcome is not None:
            action, reward, terminated = outcome
            assert np.array_equal(step["action"], action)
            assert step["reward"] == np.float32(reward)
            assert step["terminated"] == terminated
    return len(positions)


@settings(max_examples=60, deadline=None)
@given(
    frame_stack=st.integers(1, 5),
    capacity=st.integers(6, 90),
    seed=st.integers(0, 2**16),
    faults=st.sampled_from([[], FAULTS, ALL_GONE, FAULTS + ALL_GONE]),
    fill=st.sampled_from([(0, 0, 0), (9, 0, 255)]),
)
def test_stacks_equal_those_of_the_frame_stack_wrapper(
    frame_stack: int, capacity: int, seed: int, faults: list[Fault], fill: tuple[int, int, int]
) -> None:
    env = wrap(NoiseEnv(fill=fill), faults=faults, frame_stack=frame_stack)
    replay = make_replay_buffer(env, capacity=capacity, frame_stack=frame_stack)
    recorded = record_steps(env, replay, steps=60, seed=seed)
    assert assert_stacks_match(replay, recorded) > 0


def test_an_observation_repeated_without_cameras_is_stacked_as_returned() -> None:
    env = wrap(NoiseEnv(max_steps=1000), faults=ALL_GONE, frame_stack=3)
    replay = make_replay_buffer(env, capacity=100, frame_stack=3)
    recorded = record_steps(env, replay, steps=20)
    assert replay.steps["repeated"].sum() == 5, "every episode ends with one at its fourth step"
    assert_stacks_match(replay, recorded)


@pytest.mark.parametrize("task", ["toy/deep_sea", "toy/identity_continuous", "toy/hidden_goal"])
def test_stacks_of_toy_tasks_equal_their_observations(task: str) -> None:
    env = make(task, frame_stack=3)
    replay = make_replay_buffer(env, capacity=70, frame_stack=3)
    recorded = record_steps(env, replay, steps=150)
    assert_stacks_match(replay, recorded)


@pytest.mark.simulator
@pytest.mark.parametrize("task", ["dmc/cheetah_run", "dmc/reach_duplo"])  # a black fill and a white one
def test_stacks_of_a_simulator_with_camera_faults_equal_its_observations(task: str) -> None:
    pytest.importorskip("dm_control", reason='pip install "manyview[dmc]"')
    faultless_env = make(task, render_quality="fast", action_repeat=4)
    first_view = faultless_env.get_wrapper_attr("views")[0].name
    faultless_env.close()
    durations: tuple[FaultDuration, ...] = get_args(FaultDuration)
    faults = [
        Fault(view=first_view, kind=kind, lasts=lasts, probability=0.1)
        for kind in get_args(FaultKind)
        for lasts in durations
    ]
    env = make(task, render_quality="fast", action_repeat=4, faults=faults)
    replay = make_replay_buffer(env, capacity=30, frame_stack=3)
    assert [view.derived_from for view in replay.views].count(None) == 2
    recorded = record_steps(env, replay, steps=40)
    env.close()
    assert_stacks_match(replay, recorded)


def test_memory_mapped_stacks_are_equal_and_leave_no_files(tmp_path: Path) -> None:
    env = wrap(NoiseEnv(), faults=FAULTS, frame_stack=3)
    replay = make_replay_buffer(env, capacity=40, frame_stack=3, directory=tmp_path / "replay")
    recorded = record_steps(env, replay, steps=100)
    assert_stacks_match(replay, recorded)
    assert list((tmp_path / "replay").iterdir()) == []


def record_split_steps(
    env: gym.Env[Observation, Any], replay: ReplayBuffer, *, chunk_length: int, steps: int, seed: int
) -> RecordedSteps:
    """Record steps, but split the episode every `chunk_length` steps as an actor does."""
    recorded = RecordedSteps()
    env.action_space.seed(seed)
    done = True
    observation: Observation = {}
    for step in range(steps):
        if done or step % chunk_length == 0:
            if done:
                observation, _ = env.reset(seed=seed if step == 0 else None)
            if done:
                replay.start_episode(get_newest_frames(observation, replay.views))
            else:
                replay.split_episode()
            recorded.observations.append({name: part.copy() for name, part in observation.items()})
            recorded.outcomes.append(None)
            recorded.indices.append(replay.inserted - 1)
        action = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        newest = get_newest_frames(observation, replay.views)
        replay.add(action, float(reward), terminated, newest, repeated=info.get("blind", False))
        recorded.outcomes[-1] = (action, float(reward), terminated)
        recorded.observations.append({name: part.copy() for name, part in observation.items()})
        recorded.outcomes.append(None)
        recorded.indices.append(replay.inserted - 1)
    return recorded


@settings(max_examples=30, deadline=None)
@given(frame_stack=st.integers(1, 4), chunk_length=st.integers(1, 7), seed=st.integers(0, 2**16))
def test_a_split_episode_keeps_its_earlier_frames(frame_stack: int, chunk_length: int, seed: int) -> None:
    env = wrap(NoiseEnv(max_steps=20), faults=FAULTS, frame_stack=frame_stack)
    replay = make_replay_buffer(env, capacity=300, frame_stack=frame_stack)
    recorded = record_split_steps(env, replay, chunk_length=chunk_length, steps=60, seed=seed)
    assert assert_stacks_match(replay, recorded) == len(recorded.indices)


def test_the_newest_observation_equals_that_of_the_frame_stack_wrapper() -> None:
    env = wrap(NoiseEnv(), faults=FAULTS, frame_stack=3)
    replay = make_replay_buffer(env, capacity=200, frame_stack=3)
    for steps in range(1, 30):
        recorded = record_steps(env, replay, steps=steps, seed=steps)
        views, mask = replay.get_observation()
        assert np.array_equal(mask[0], recorded.stack_masks()[-1])
        assert np.array_equal(views[0], recorded.stack_views([view.name for view in replay.views])[-1])


def test_views_of_several_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one size, got \{'side': \(6, 7, 3\), 'top': \(6, 8, 3\)\}"):
        ReplayBuffer([View("side", 6, 7), View("top", 6, 8)], action_shape=(), capacity=10, frame_stack=1)


def test_a_derived_view_needs_a_camera_and_a_fill_for_all_channels() -> None:
    side, gray = View("side", 6, 7), View("grey", 6, 7, 1)
    cut, twice = View("cut", 6, 7, derived_from="side"), View("twice", 6, 7, derived_from="cut")
    with pytest.raises(ValueError, match="'twice' is derived from 'cut': expected a camera"):
        ReplayBuffer([side, cut, twice], action_shape=(), capacity=10, frame_stack=1)
    with pytest.raises(ValueError, match=r"'grey_cut' does not fit: expected 1 channels, got 3 in \(0, 0, 0\)"):
        ReplayBuffer(
            [gray, View("grey_cut", 6, 7, 1, derived_from="grey")], action_shape=(), capacity=10, frame_stack=1
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 2, "frame_stack": 3}, r"invalid capacity: expected at least 3 \(frame_stack\), got 2"),
        ({"capacity": 10, "frame_stack": 0}, "invalid frame_stack: expected 1 to 255, got 0"),
        ({"capacity": 1000, "frame_stack": 256}, "invalid frame_stack: expected 1 to 255, got 256"),
    ],
)
def test_invalid_sizes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplayBuffer([View("side", 6, 7)], action_shape=(), **options)


def test_a_replay_buffer_continues_from_its_state() -> None:
    """The state is taken in the middle of an episode."""
    env = wrap(NoiseEnv(max_steps=1000), faults=FAULTS, frame_stack=3)
    replay, restored = (make_replay_buffer(env, capacity=50, frame_stack=3) for _ in range(2))
    recorded = record_steps(env, replay, steps=70)
    assert recorded.indices[-1] > replay.capacity
    restored.steps[:] = replay.steps
    for ring, source in zip(restored.frames, replay.frames, strict=True):
        ring[:] = source
    restored.load_state(replay.get_state())
    for _ in range(5):
        observation, reward, terminated, truncated, _ = env.step(0)
        assert not terminated
        assert not truncated
        for buffer in (replay, restored):
            buffer.add(0, float(reward), terminated, get_newest_frames(observation, buffer.views))
    assert restored.inserted == replay.inserted
    assert np.array_equal(restored.steps, replay.steps)
    assert all(np.array_equal(*rings) for rings in zip(restored.frames, replay.frames, strict=True))


def test_a_state_of_another_size_is_refused() -> None:
    env = make("toy/identity")
    small, large = (make_replay_buffer(env, capacity=capacity, frame_stack=1) for capacity in (10, 20))
    with pytest.raises(ValueError, match=r"does not fit this replay buffer: .*'capacity': 20.* got \{'capacity': 10"):
        large.load_state(small.get_state())
