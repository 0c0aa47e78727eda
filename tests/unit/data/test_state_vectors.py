"""State vectors in replay and rollout buffers, against what an environment returned."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyview.data import AsyncWriter, DerivedViews, ReplayBuffer, RolloutBuffer, Sampler, SegmentLog
from manyview.data.chunks import append_chunk, pack_chunk, unpack_chunk
from manyview.data.segment_format import SegmentError
from manyview.data.state_vectors import concatenate_vectors
from manyview.envs import ContractError, StateVector, get_state_vectors, get_views, wrap
from tests.support.replay import play_steps
from tests.support.state_vectors import VECTOR_SIZE, NumberedEnv, make_flat_vector, make_vectors


def make_replay(*, capacity: int = 200, state_stack: int = 1, frame_stack: int = 2) -> ReplayBuffer:
    env = NumberedEnv()
    return ReplayBuffer(
        get_views(env),
        action_shape=(2,),
        capacity=capacity,
        frame_stack=frame_stack,
        state_vectors=get_state_vectors(env),
        state_stack=state_stack,
    )


def fill(replay: ReplayBuffer, *, steps: int, absent: float = 0.0, stack: int = 1) -> list[tuple[int, Any]]:
    """Play steps; return the index and the wrapper's stacked vectors of each observation."""
    env = wrap(NumberedEnv(absent=absent), state_stack=stack)
    env.action_space.seed(0)
    expected = []
    for action, reward, terminated, observation, blind in play_steps(env, steps=steps):
        newest = {
            name: part[-len(make_vectors(1)[name]) :] if name in make_vectors(1) else part
            for name, part in observation.items()
        }
        if action is None:
            replay.start_episode(newest)
        else:
            replay.add(action, reward, terminated, newest, repeated=blind)
        stacked = concatenate_vectors(observation, replay.state_vectors, state_stack=stack)
        expected.append((replay.inserted - 1, stacked))
    return expected


@pytest.mark.parametrize("absent", [0.0, 0.3])
@pytest.mark.parametrize("stack", [1, 2, 4])
def test_the_replay_buffer_stacks_vectors_as_the_wrapper_does(stack: int, absent: float) -> None:
    replay = make_replay(capacity=60, state_stack=stack)
    expected = fill(replay, steps=130, absent=absent, stack=stack)[-50:]
    indices = np.array([index for index, _ in expected])
    np.testing.assert_array_equal(replay.stack_vectors(indices), np.stack([vectors for _, vectors in expected]))
    newest = replay.get_observation()
    assert len(newest) == 3
    np.testing.assert_array_equal(newest[2][0], expected[-1][1])


def test_a_stack_is_whole_concatenations_oldest_first() -> None:
    replay = make_replay(state_stack=2)
    fill(replay, steps=30)
    numbers = replay.steps["vectors"][: replay.inserted, 0].astype(int)
    index = next(i for i in range(1, replay.inserted - 1) if replay.steps["acted"][i - 1])
    expected = np.concatenate([make_flat_vector(numbers[index - 1]), make_flat_vector(numbers[index])])
    np.testing.assert_array_equal(replay.stack_vectors(np.array([index]))[0], expected)  # type: ignore[index]
    np.testing.assert_array_equal(replay.stack_vectors(np.array([0]))[0], np.tile(make_flat_vector(numbers[0]), 2))  # type: ignore[index]


def test_vectors_of_a_batch_are_those_of_a_loop_over_the_episode() -> None:
    """The loop walks from s_t step by step, at most to the end of its episode."""
    replay, n_step = make_replay(), 3
    fill(replay, steps=150)
    batch = Sampler(replay, batch_size=256, n_step=n_step, discount=0.9, seed=0).sample()
    assert batch.vectors is not None
    assert batch.next_vectors is not None
    lengths = set()
    for row, start in enumerate(batch.indices.tolist()):
        end = start
        while end - start < n_step and replay.steps["acted"][end]:
            end += 1
        lengths.add(end - start)
        number = int(replay.steps["vectors"][start, 0])
        np.testing.assert_array_equal(batch.vectors[row], make_flat_vector(number))
        np.testing.assert_array_equal(
            batch.next_vectors[row], make_flat_vector(number + end - start)
        )  # the same episode
    assert lengths == {1, 2, 3}


def test_a_batch_without_vectors_has_none() -> None:
    views = get_views(NumberedEnv())
    replay = ReplayBuffer(views, action_shape=(2,), capacity=50, frame_stack=1)
    observation = {name: part for name, part in NumberedEnv().reset(seed=0)[0].items() if name not in make_vectors(1)}
    replay.start_episode(observation)
    for _ in range(5):
        replay.add(np.zeros(2), 0.0, False, observation)
    batch = Sampler(replay, batch_size=4, n_step=1, discount=0.9, seed=0).sample()
    assert batch.vectors is batch.next_vectors is None
    assert len(replay.get_observation()) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"joints": np.array([1, np.nan, 2], np.float32)}, "state vector 'joints': expected finite"),
        ({"joints": np.array([1, 2e12, 2], np.float32)}, "state vector 'joints': expected finite"),
        ({"joints": np.zeros(2, np.float32)}, "state vector 'joints': expected float32 of shape"),
        ({"grip": np.zeros(1)}, "state vector 'grip': expected float32 of shape"),
        ({"extra": np.zeros(1, np.float32)}, "unknown 'extra'"),
    ],
)
def test_invalid_vectors_are_refused_and_nothing_is_stored(changes: dict[str, Any], message: str) -> None:
    replay, env = make_replay(), NumberedEnv()
    replay.start_episode(env.reset(seed=0)[0])
    with pytest.raises(ContractError, match=message):
        replay.add(np.zeros(2), 0.0, False, {**env.reset()[0], **changes})
    assert replay.inserted == 1


def test_state_and_segments_restore_the_vectors(tmp_path: Path) -> None:
    replay, restored, writer = (
        make_replay(capacity=40, state_stack=3),
        make_replay(capacity=40, state_stack=3),
        AsyncWriter(),
    )
    fill(replay, steps=90)
    log = SegmentLog(tmp_path, replay, writer)
    log.flush()
    writer.wait()
    restored.load_state(replay.get_state())
    SegmentLog(tmp_path, restored, writer).load(log.list_segments(inserted=replay.inserted))
    assert restored.steps.tobytes() == replay.steps.tobytes()
    writer.close()


@pytest.mark.parametrize("vectors", [(), (StateVector("grip", 1), StateVector("joints", 3))])
def test_a_state_with_other_vectors_is_refused(vectors: tuple[StateVector, ...]) -> None:
    replay = make_replay()
    fill(replay, steps=10)
    other = ReplayBuffer(
        get_views(NumberedEnv()), action_shape=(2,), capacity=200, frame_stack=2, state_vectors=vectors
    )
    with pytest.raises(ValueError, match="layout"):
        other.load_state(replay.get_state())


@pytest.mark.parametrize(("frame_stack", "state_stack"), [(1, 1), (3, 1), (1, 4), (3, 2)])
def test_chunks_carry_vectors_and_their_stacks(frame_stack: int, state_stack: int) -> None:
    """Chunks of an episode keep its stacks, in the sender and in the receiver."""
    sender, receiver = (make_replay(frame_stack=frame_stack, state_stack=state_stack) for _ in range(2))
    env = wrap(NumberedEnv(max_steps=60), state_stack=state_stack)
    observation, _ = env.reset(seed=3)
    start, expected, indices = 0, [], []

    def get_newest(observation: Any) -> Any:
        return {
            name: part[-len(make_vectors(1)[name]) :] if name in make_vectors(1) else part
            for name, part in observation.items()
        }

    sender.start_episode(get_newest(observation))
    for step in range(12):
        observation, reward, terminated, truncated, _ = env.step(np.zeros(2, np.float32))
        assert not terminated
        assert not truncated
        sender.add(np.zeros(2), float(reward), terminated, get_newest(observation))
        np.testing.assert_array_equal(
            sender.get_observation()[2][0],
            concatenate_vectors(observation, sender.state_vectors, state_stack=state_stack),
        )
        if step % 4 == 3:
            append_chunk(receiver, unpack_chunk(pack_chunk(sender, start), receiver))
            start = sender.inserted
            sender.split_episode()
        else:
            expected.append(concatenate_vectors(observation, sender.state_vectors, state_stack=state_stack))
            indices.append(sender.inserted - 1)
    np.testing.assert_array_equal(receiver.stack_vectors(np.array(indices)), np.stack(expected))


@pytest.mark.parametrize("field", ["vectors", "vector_age"])
def test_a_chunk_with_invalid_vectors_is_refused(field: str) -> None:
    sender, receiver = make_replay(), make_replay()
    fill(sender, steps=5)
    sender.steps[field][2 if field == "vectors" else 0] = np.nan if field == "vectors" else 3
    with pytest.raises(SegmentError, match="vectors" if field == "vectors" else "before the chunk"):
        unpack_chunk(pack_chunk(sender, 0), receiver)


def test_a_rollout_buffer_returns_the_vectors_of_each_step() -> None:
    steps, envs = 4, 3
    rollout = RolloutBuffer(
        num_steps=steps,
        num_envs=envs,
        image_shape=(1, 5, 5),
        num_cameras=1,
        action_shape=(),
        action_dtype=torch.int64,
        derived_views=DerivedViews(seed=0),
        device=torch.device("cpu"),
        vector_size=VECTOR_SIZE,
    )
    vectors = torch.randn(steps + 1, envs, VECTOR_SIZE)
    views, mask, zeros = (
        torch.zeros(envs, 1, 1, 5, 5, dtype=torch.uint8),
        torch.ones(envs, 1, dtype=torch.bool),
        torch.zeros(envs),
    )
    rollout.reset(views, mask, vectors[0], first_step=0)
    for step in range(steps):
        assert rollout.get_observation()[2].equal(vectors[step])
        rollout.add(
            zeros.long(), zeros, zeros, None, reward=zeros, terminated=zeros.bool(), truncated=zeros.bool(),
            final_value=zeros, views=views, mask=mask, vectors=vectors[step + 1],
        )  # fmt: skip
    rollout.finish(zeros, None)
    indices = torch.tensor([0, 5, 11])
    minibatch = rollout.get_minibatch(indices)
    assert minibatch.vectors is not None
    assert minibatch.vectors.equal(torch.stack([vectors[i // envs, i % envs] for i in indices.tolist()]))
    rollout.restart(first_step=steps)
    assert rollout.get_observation()[2].equal(vectors[-1])
    with pytest.raises(ValueError, match="missing state vectors"):
        rollout.reset(views, mask, first_step=0)
