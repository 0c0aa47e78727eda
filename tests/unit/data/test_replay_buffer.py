"""The replay shows exactly what was seen: every stack built by index equals the observation at the time of acting."""

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

# Cameras that are broken on purpose are also warned of.
pytestmark = pytest.mark.filterwarnings("ignore::manyview.envs.ViewWarning")

FAULTS = [
    Fault(view=view, kind=kind, lasts=lasts, probability=0.04)
    for view in ("side", "back")
    for kind in get_args(FaultKind)
    for lasts in ("frame", "episode")
]
ALL_GONE = [Fault(view=view, kind="gone", at_step=4) for view in ("side", "back")]


def assert_shows_what_was_seen(replay: ReplayBuffer, lived: RecordedSteps) -> int:
    """Compares everything that the ring still has; returns how much that was."""
    oldest = max(0, replay.inserted - replay.capacity)
    if oldest:
        oldest += replay.frame_stack  # of the oldest steps, the earlier frames are gone
    kept = [place for place, number in enumerate(lived.indices) if number >= oldest]
    numbers = np.array([lived.indices[place] for place in kept])
    views, masks = replay.stack_frames(numbers)
    assert np.array_equal(masks, lived.stack_masks()[kept])
    assert np.array_equal(views, lived.stack_views([view.name for view in replay.views])[kept])
    for place, number in zip(kept, numbers, strict=True):
        step, outcome = replay.steps[number % replay.capacity], lived.outcomes[place]
        assert step["acted"] == (outcome is not None)
        if outcome is not None:
            action, reward, terminated = outcome
            assert np.array_equal(step["action"], action)
            assert step["reward"] == np.float32(reward)
            assert step["terminated"] == terminated
    return len(kept)


@settings(max_examples=60, deadline=None)
@given(
    frame_stack=st.integers(1, 5),
    capacity=st.integers(6, 90),
    seed=st.integers(0, 2**16),
    faults=st.sampled_from([[], FAULTS, ALL_GONE, FAULTS + ALL_GONE]),
    fill=st.sampled_from([(0, 0, 0), (9, 0, 255)]),
)
def test_stacks_are_what_the_frame_stack_showed(
    frame_stack: int, capacity: int, seed: int, faults: list[Fault], fill: tuple[int, int, int]
) -> None:
    env = wrap(NoiseEnv(fill=fill), faults=faults, frame_stack=frame_stack)
    replay = make_replay_buffer(env, capacity=capacity, frame_stack=frame_stack)
    lived = record_steps(env, replay, steps=60, seed=seed)
    assert assert_shows_what_was_seen(replay, lived) > 0


def test_a_last_observation_that_is_shown_again_since_no_camera_sees_is_shown_again() -> None:
    env = wrap(NoiseEnv(max_steps=1000), faults=ALL_GONE, frame_stack=3)
    replay = make_replay_buffer(env, capacity=100, frame_stack=3)
    lived = record_steps(env, replay, steps=20)
    assert replay.steps["repeated"].sum() == 5, "every episode ends so at its fourth step"
    assert_shows_what_was_seen(replay, lived)


@pytest.mark.parametrize("task", ["toy/deep_sea", "toy/identity_continuous", "toy/hidden_goal"])
def test_the_toys_are_shown_as_they_were(task: str) -> None:
    env = make(task, frame_stack=3)
    replay = make_replay_buffer(env, capacity=70, frame_stack=3)
    lived = record_steps(env, replay, steps=150)
    assert_shows_what_was_seen(replay, lived)


@pytest.mark.simulator
@pytest.mark.parametrize("task", ["dmc/cheetah_run", "dmc/reach_duplo"])  # a black fill and a white one
def test_a_simulator_with_failing_cameras_is_shown_as_it_was(task: str) -> None:
    pytest.importorskip("dm_control", reason='pip install "manyview[dmc]"')
    with_faults = make(task, render_quality="fast", action_repeat=4)
    first = with_faults.get_wrapper_attr("views")[0].name
    with_faults.close()
    lasting: tuple[FaultDuration, ...] = get_args(FaultDuration)
    faults = [
        Fault(view=first, kind=kind, lasts=lasts, probability=0.1) for kind in get_args(FaultKind) for lasts in lasting
    ]
    env = make(task, render_quality="fast", action_repeat=4, faults=faults)
    replay = make_replay_buffer(env, capacity=30, frame_stack=3)
    assert [view.derived_from for view in replay.views].count(None) == 2
    lived = record_steps(env, replay, steps=40)
    env.close()
    assert_shows_what_was_seen(replay, lived)


def test_mapped_files_show_the_same_and_leave_nothing_behind(tmp_path: Path) -> None:
    env = wrap(NoiseEnv(), faults=FAULTS, frame_stack=3)
    replay = make_replay_buffer(env, capacity=40, frame_stack=3, directory=tmp_path / "replay")
    lived = record_steps(env, replay, steps=100)
    assert_shows_what_was_seen(replay, lived)
    assert list((tmp_path / "replay").iterdir()) == []


def in_pieces(
    env: gym.Env[Observation, Any], replay: ReplayBuffer, *, piece: int, steps: int, seed: int
) -> RecordedSteps:
    """As `live`, but every `piece` steps the stream breaks off and begins again where it is, as an actor sends it."""
    lived = RecordedSteps()
    env.action_space.seed(seed)
    over = True
    observation: Observation = {}
    for step in range(steps):
        if over or step % piece == 0:
            if over:
                observation, _ = env.reset(seed=seed if step == 0 else None)
            if over:
                replay.start_episode(get_newest_frames(observation, replay.views))
            else:
                replay.split_episode()
            lived.observations.append({name: part.copy() for name, part in observation.items()})
            lived.outcomes.append(None)
            lived.indices.append(replay.inserted - 1)
        action = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        newest = get_newest_frames(observation, replay.views)
        replay.add(action, float(reward), terminated, newest, repeated=info.get("blind", False))
        lived.outcomes[-1] = (action, float(reward), terminated)
        lived.observations.append({name: part.copy() for name, part in observation.items()})
        lived.outcomes.append(None)
        lived.indices.append(replay.inserted - 1)
    return lived


@settings(max_examples=30, deadline=None)
@given(frame_stack=st.integers(1, 4), piece=st.integers(1, 7), seed=st.integers(0, 2**16))
def test_a_stream_that_begins_in_the_middle_of_an_episode_has_its_earlier_frames(
    frame_stack: int, piece: int, seed: int
) -> None:
    env = wrap(NoiseEnv(max_steps=20), faults=FAULTS, frame_stack=frame_stack)
    replay = make_replay_buffer(env, capacity=300, frame_stack=frame_stack)
    lived = in_pieces(env, replay, piece=piece, steps=60, seed=seed)
    assert assert_shows_what_was_seen(replay, lived) == len(lived.indices)


def test_the_newest_observation_is_what_the_frame_stack_shows() -> None:
    env = wrap(NoiseEnv(), faults=FAULTS, frame_stack=3)
    replay = make_replay_buffer(env, capacity=200, frame_stack=3)
    for steps in range(1, 30):
        lived = record_steps(env, replay, steps=steps, seed=steps)
        views, mask = replay.get_observation()
        assert np.array_equal(mask[0], lived.stack_masks()[-1])
        assert np.array_equal(views[0], lived.stack_views([view.name for view in replay.views])[-1])


def test_views_of_several_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one size, got \{'side': \(6, 7, 3\), 'top': \(6, 8, 3\)\}"):
        ReplayBuffer([View("side", 6, 7), View("top", 6, 8)], action_shape=(), capacity=10, frame_stack=1)


def test_a_derived_view_needs_a_camera_and_a_whole_fill() -> None:
    side, grey = View("side", 6, 7), View("grey", 6, 7, 1)
    cut, twice = View("cut", 6, 7, derived_from="side"), View("twice", 6, 7, derived_from="cut")
    with pytest.raises(ValueError, match="'twice' is derived from 'cut': expected a camera"):
        ReplayBuffer([side, cut, twice], action_shape=(), capacity=10, frame_stack=1)
    with pytest.raises(ValueError, match=r"'grey_cut' does not fit: expected 1 channels, got 3 in \(0, 0, 0\)"):
        ReplayBuffer(
            [grey, View("grey_cut", 6, 7, 1, derived_from="grey")], action_shape=(), capacity=10, frame_stack=1
        )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"capacity": 2, "frame_stack": 3}, r"invalid capacity: expected at least 3 \(frame_stack\), got 2"),
        ({"capacity": 10, "frame_stack": 0}, "invalid frame_stack: expected 1 to 255, got 0"),
        ({"capacity": 1000, "frame_stack": 256}, "invalid frame_stack: expected 1 to 255, got 256"),
    ],
)
def test_a_replay_that_cannot_work_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ReplayBuffer([View("side", 6, 7)], action_shape=(), **wrong)


def test_a_replay_goes_on_from_its_state() -> None:
    """In the middle of an episode, too."""
    env = wrap(NoiseEnv(max_steps=1000), faults=FAULTS, frame_stack=3)
    replay, other = (make_replay_buffer(env, capacity=50, frame_stack=3) for _ in range(2))
    lived = record_steps(env, replay, steps=70)
    assert lived.indices[-1] > replay.capacity
    other.steps[:] = replay.steps
    for ring, source in zip(other.frames, replay.frames, strict=True):
        ring[:] = source
    other.load_state(replay.get_state())
    for _ in range(5):
        observation, reward, terminated, truncated, _ = env.step(0)
        assert not terminated
        assert not truncated
        for each in (replay, other):
            each.add(0, float(reward), terminated, get_newest_frames(observation, each.views))
    assert other.inserted == replay.inserted
    assert np.array_equal(other.steps, replay.steps)
    assert all(np.array_equal(*rings) for rings in zip(other.frames, replay.frames, strict=True))


def test_a_state_of_another_size_is_refused() -> None:
    env = make("toy/identity")
    small, large = (make_replay_buffer(env, capacity=capacity, frame_stack=1) for capacity in (10, 20))
    with pytest.raises(ValueError, match=r"does not fit this replay buffer: .*'capacity': 20.* got \{'capacity': 10"):
        large.load_state(small.get_state())
