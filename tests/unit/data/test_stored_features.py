"""Stored features: computed once with their step, and kept in chunks, states and logs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from manyview.data import AsyncWriter, ReplayBuffer, SegmentError, SegmentLog, compute_buffer_bytes
from manyview.data.chunks import append_chunk, pack_chunk, unpack_chunk
from manyview.data.segment_format import pack_segment
from manyview.envs import View, wrap
from manyview.envs.contract import ContractError
from tests.support.replay import (
    NoiseEnv,
    PixelProjection,
    RecordedSteps,
    get_newest_frames,
    make_replay_buffer,
    record_steps,
)
from tests.unit.data.test_replay_buffer import FAULTS

STACK, CAPACITY = 3, 50
FEATURE_SHAPE = (4, 5)  # groups for the three views and for all, by numbers per group
Snapshot = tuple[int, list[bytes]]


def make_env() -> Any:
    return wrap(NoiseEnv(), faults=FAULTS, frame_stack=STACK)


def make_replay(*, capacity: int = CAPACITY, folder: Path | None = None) -> ReplayBuffer:
    return make_replay_buffer(
        make_env(), capacity=capacity, frame_stack=STACK, directory=folder, feature_shape=FEATURE_SHAPE
    )


def make_filled_replay(*, steps: int = 170, folder: Path | None = None) -> tuple[ReplayBuffer, RecordedSteps]:
    replay = make_replay(folder=folder)
    return replay, record_steps(make_env(), replay, steps=steps)


def get_features(replay: ReplayBuffer) -> NDArray[np.float32]:
    assert replay.features is not None
    return replay.features


def take_snapshot(replay: ReplayBuffer) -> Snapshot:
    return replay.inserted, [replay.steps.tobytes(), *(ring.tobytes() for ring in replay.rings)]


@pytest.mark.parametrize("on_disk", [False, True])
def test_features_are_those_of_the_observation_at_the_time_of_acting(on_disk: bool, tmp_path: Path) -> None:
    """The environment stacks the reference frames, and the ring wraps three times."""
    replay, recorded = make_filled_replay(folder=tmp_path if on_disk else None)
    names = [view.name for view in replay.views]
    expected = PixelProjection(FEATURE_SHAPE)(recorded.stack_views(names), recorded.stack_masks())
    ring_rows = [
        (index, row) for index, row in zip(recorded.indices, expected, strict=True) if index >= replay.inserted - 50
    ]
    assert len(ring_rows) == CAPACITY
    assert len({row.tobytes() for _, row in ring_rows}) > 40
    for index, row in ring_rows:
        assert np.array_equal(get_features(replay)[index % CAPACITY], row)


def test_a_split_episode_starts_with_the_features_it_ended_with() -> None:
    replay, _ = make_filled_replay(steps=20)
    before = get_features(replay)[(replay.inserted - 1) % CAPACITY].copy()
    get_features(replay)[replay.inserted % CAPACITY :] = 7  # stale
    replay.split_episode()
    assert np.array_equal(get_features(replay)[(replay.inserted - 1) % CAPACITY], before)


def test_features_arrive_in_chunks_as_they_were_sent() -> None:
    sender, receiver = make_replay(capacity=40), make_replay(capacity=60)
    receiver.feature_fn = None  # the sender computed them
    recorded = record_steps(make_env(), sender, steps=25)
    start, sent_features = sender.inserted, []
    sender.split_episode()
    for chunk in range(8):
        record_steps(wrap(NoiseEnv(), frame_stack=STACK), sender, steps=4 + chunk, seed=chunk)
        sent_features.append(get_features(sender).take(range(start, sender.inserted), axis=0, mode="wrap"))
        append_chunk(receiver, unpack_chunk(pack_chunk(sender, start), receiver))
        start = sender.inserted
        sender.split_episode()
    all_features = np.concatenate(sent_features)
    assert len(recorded.indices) < receiver.inserted == len(all_features)
    assert receiver.inserted > receiver.capacity
    newest = get_features(receiver).take(range(receiver.inserted - 60, receiver.inserted), axis=0, mode="wrap")
    assert newest.tobytes() == all_features[-60:].tobytes()


@pytest.mark.parametrize("steps", [30, 170])
def test_features_are_restored_from_state_and_log_bit_for_bit(steps: int, tmp_path: Path) -> None:
    replay, restored = make_replay(), make_replay()
    restored.feature_fn = None  # restoring computes nothing
    writer = AsyncWriter()
    log, restored_log = (SegmentLog(tmp_path, buffer, writer) for buffer in (replay, restored))
    for part in range(4):
        record_steps(make_env(), replay, steps=steps // 4, seed=part)
        log.flush()
    writer.wait()
    restored.load_state(replay.get_state())
    restored_log.load(log.list_segments(inserted=replay.inserted))
    writer.close()
    indices = np.arange(max(0, replay.inserted - CAPACITY), replay.inserted) % CAPACITY
    assert restored.inserted == replay.inserted
    for ring, source in zip(restored.rings, replay.rings, strict=True):
        assert ring[indices].tobytes() == source[indices].tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2e15])
def test_corrupted_features_of_a_segment_are_refused(value: float) -> None:
    replay = make_replay(capacity=40)
    record_steps(make_env(), replay, steps=12)
    arrays = [ring[: replay.inserted].copy() for ring in replay.rings]
    arrays[-1][3, 1, 2] = value
    receiver = make_replay()
    before = take_snapshot(receiver)
    with pytest.raises(SegmentError, match="features: expected finite numbers of at most 1e"):
        unpack_chunk(pack_segment(0, replay.steps[: replay.inserted], arrays)[0], receiver)
    assert take_snapshot(receiver) == before


def corrupt_flag(newest: dict[str, NDArray[np.uint8]]) -> None:
    newest["record"][-8:] = 77  # flags of the masks, and ages


def corrupt_features(newest: dict[str, NDArray[np.uint8]]) -> None:
    newest["features"][:] = 255  # NaN


def reshape_features(newest: dict[str, NDArray[np.uint8]]) -> None:
    newest["features"] = newest["features"][:2]


@pytest.mark.parametrize("corrupt", [corrupt_flag, corrupt_features, reshape_features])
def test_a_corrupted_newest_step_is_refused_and_changes_nothing(corrupt: Any) -> None:
    replay, _ = make_filled_replay()
    other, _ = make_filled_replay(steps=60)
    state, before = replay.get_state(), take_snapshot(other)
    corrupt(state["newest"])
    with pytest.raises(ValueError, match=r"invalid step: |newest step does not fit"):
        other.load_state(state)
    assert take_snapshot(other) == before


def test_steps_with_and_without_features_do_not_mix() -> None:
    replay, _ = make_filled_replay(steps=10)
    plain_replay = make_replay_buffer(make_env(), capacity=CAPACITY, frame_stack=STACK)
    record_steps(make_env(), plain_replay, steps=10)
    for source, target in ((replay, plain_replay), (plain_replay, replay)):
        with pytest.raises(ValueError, match="state does not fit this replay buffer"):
            target.load_state(source.get_state())
        with pytest.raises(SegmentError, match=r"segment does not fit this replay buffer: .* in [45] parts, got"):
            unpack_chunk(pack_chunk(source, 0), target)
    assert "features" not in plain_replay.get_state()["layout"]
    assert "features" not in plain_replay.get_state()["newest"]


def test_invalid_features_are_refused_before_the_step_is_stored() -> None:
    replay, _ = make_filled_replay(steps=20)
    env = make_env()
    observation = get_newest_frames(env.reset(seed=1)[0], replay.views)
    replay.start_episode(observation)
    newest = (replay.inserted - 1) % CAPACITY
    inserted, record = replay.inserted, replay.steps[newest].copy()
    row = np.zeros((1, *FEATURE_SHAPE), np.float32)
    invalid_features = {"shape": row[0], "type": row.astype(np.float64), "NaN": row + np.nan, "huge": row + 1e20}
    for features in invalid_features.values():
        replay.feature_fn = lambda views, mask, features=features: features  # noqa: ARG005
        with pytest.raises(ContractError, match="features"):
            replay.add(0, 1.0, False, observation)
    replay.feature_fn = None
    with pytest.raises(RuntimeError, match="feature_fn is missing"):
        replay.add(0, 1.0, False, observation)
    assert (replay.inserted, replay.steps[newest]) == (inserted, record)
    replay.feature_fn = PixelProjection(FEATURE_SHAPE)
    replay.add(0, 1.0, False, observation)
    assert replay.steps["acted"][newest]


def test_features_count_in_the_size_of_the_buffer() -> None:
    view = View("side", 6, 7)
    sizes: dict[str, Any] = {"action_shape": (2,), "capacity": 30}
    replay = ReplayBuffer([view], frame_stack=1, feature_shape=(2, 9), **sizes)
    assert compute_buffer_bytes([view], feature_shape=(2, 9), **sizes) == replay.nbytes
    assert replay.nbytes - compute_buffer_bytes([view], **sizes) == 30 * 2 * 9 * 4


@pytest.mark.parametrize("shape", [(2, 5), (0, 5), (5, 5), (3, 0)])
def test_feature_groups_that_do_not_fit_the_views_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"expected 1, 3 \(views\) or 4 groups of at least 1 number, got \("):
        make_replay_buffer(make_env(), capacity=CAPACITY, frame_stack=STACK, feature_shape=shape)
