"""Sampler: reproducible batches, with and without prefetching."""

import threading
import time
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch

from manyview.data import Batch, ReplayBuffer, Sampler
from manyview.data.n_step import count_reserve_steps
from manyview.envs import wrap
from tests.support.replay import NoiseEnv, are_batches_equal, clone_batch, make_replay_buffer, play_steps, record_steps
from tests.unit.data.test_n_step import GAMMA, ReferenceSteps, StepRecorder


def make_filled_replay(*, capacity: int = 200, steps: int = 150) -> ReplayBuffer:
    env = wrap(NoiseEnv(), frame_stack=3)
    replay = make_replay_buffer(env, capacity=capacity, frame_stack=3)
    record_steps(env, replay, steps=steps)
    return replay


def make_sampler(replay: ReplayBuffer, *, seed: int = 0, prefetch: bool = False, batch_size: int = 16) -> Sampler:
    return Sampler(replay, batch_size=batch_size, n_step=3, discount=GAMMA, seed=seed, prefetch=prefetch)


def test_a_batch_has_the_documented_shapes_and_types() -> None:
    replay = make_filled_replay()
    batch = make_sampler(replay).sample()
    assert batch.neighbor_distances is batch.stored_features is batch.positions is None
    parts = {name: part for name, part in batch._asdict().items() if part is not None}
    assert {name: (tuple(part.shape), part.dtype) for name, part in parts.items()} == {
        "views": ((16, 3, 9, 5, 7), torch.uint8),
        "mask": ((16, 3), torch.bool),
        "action": ((16,), torch.int64),
        "reward_ext": ((16,), torch.float32),
        "discount": ((16,), torch.float32),
        "next_views": ((16, 3, 9, 5, 7), torch.uint8),
        "next_mask": ((16, 3), torch.bool),
        "indices": ((16,), torch.int64),
        "next_indices": ((16,), torch.int64),
    }
    views, mask = replay.stack_frames(batch.indices.numpy())
    assert np.array_equal(batch.views.numpy(), views)
    assert np.array_equal(batch.mask.numpy(), mask)
    next_views, next_mask = replay.stack_frames(batch.next_indices.numpy())
    assert np.array_equal(batch.next_views.numpy(), next_views)
    assert np.array_equal(batch.next_mask.numpy(), next_mask)


def test_a_batch_of_a_single_row_is_the_step_at_its_index() -> None:
    replay = make_filled_replay()
    batch = make_sampler(replay, batch_size=1).sample()
    views, mask = replay.stack_frames(batch.indices.numpy())
    assert np.array_equal(batch.views.numpy(), views)
    assert np.array_equal(batch.mask.numpy(), mask)
    assert batch.action.item() == replay.steps["action"][int(batch.indices) % replay.capacity]


def test_the_next_indices_are_those_of_the_next_views() -> None:
    replay = make_filled_replay()
    batch = make_sampler(replay, batch_size=64).sample()
    views, mask = replay.stack_frames(batch.next_indices.numpy())
    assert np.array_equal(batch.next_views.numpy(), views)
    assert np.array_equal(batch.next_mask.numpy(), mask)
    assert set((batch.next_indices - batch.indices).tolist()) == {1, 2, 3}, "shorter at the end of an episode"


def test_a_batch_depends_on_its_seed_and_number_alone() -> None:
    replay = make_filled_replay()
    sampler, same_seed_sampler, other_seed_sampler = (
        make_sampler(replay),
        make_sampler(replay),
        make_sampler(replay, seed=1),
    )
    first, second = clone_batch(sampler.sample()), clone_batch(sampler.sample())
    assert not are_batches_equal(first, second)
    assert not are_batches_equal(first, other_seed_sampler.sample())
    np.random.default_rng(3).random(7)  # global generators do not matter
    torch.rand(5)
    assert are_batches_equal(first, same_seed_sampler.sample())
    assert are_batches_equal(second, same_seed_sampler.sample())


def test_a_sampler_continues_from_its_state() -> None:
    replay = make_filled_replay()
    for prefetch in (False, True):
        sampler, restored = make_sampler(replay, prefetch=prefetch), make_sampler(replay, prefetch=prefetch)
        for _ in range(3):
            sampler.sample()
        state = sampler.get_state()
        assert state == {"drawn": 3, "horizon": replay.inserted}
        restored.sample()
        restored.load_state(state)
        assert are_batches_equal(sampler.sample(), restored.sample())
        sampler.close()
        restored.close()


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_new_step_is_drawn_from_the_second_batch_after_it(prefetch: bool) -> None:
    recorder = StepRecorder(capacity=1000, frame_stack=1)
    recorder.play_episodes(np.random.default_rng(0), steps=20, max_length=20)
    recorder.start_episode()
    sampler = make_sampler(recorder.replay, prefetch=prefetch, batch_size=1000)
    sampler.sample()
    for _ in range(4):
        recorder.add(terminated=False)
    newest = recorder.replay.inserted - 4  # a window of three steps starts there
    assert [newest in sampler.sample().indices.tolist() for _ in range(2)] == [False, True]
    sampler.close()


def sample_batches(*, prefetch: bool, capacity: int, pauses: list[int], folder: Any = None) -> Iterator[Batch]:
    """Yield a batch after each pause, a number of steps, from a ring that wraps."""
    env = wrap(NoiseEnv())
    replay = make_replay_buffer(env, capacity=capacity, frame_stack=3, directory=folder)
    env.action_space.seed(0)
    steps = play_steps(env, steps=10**6)
    sampler = make_sampler(replay, prefetch=prefetch)
    for pause in [40, *pauses]:
        for _ in range(pause):
            action, reward, terminated, observation, _ = next(steps)
            if action is None:
                replay.start_episode(observation)
            else:
                replay.add(action, reward, terminated, observation)
        yield sampler.sample()
    sampler.close()


@pytest.mark.parametrize("capacity", [30, 64, 200, 1000])
@pytest.mark.parametrize("on_disk", [False, True])
def test_prefetching_does_not_change_batches(capacity: int, on_disk: bool, tmp_path: Any) -> None:
    """Pauses are shorter and longer than the reserve, and rings wrap several times."""
    pauses = np.random.default_rng(capacity).choice([0, 1, 1, 2, 3, 8, 40], size=120).tolist()
    assert any(pause > count_reserve_steps(capacity) for pause in pauses)
    folder = tmp_path if on_disk else None
    prefetched_batches = sample_batches(prefetch=True, capacity=capacity, pauses=pauses, folder=folder)
    expected_batches = sample_batches(prefetch=False, capacity=capacity, pauses=pauses)
    assert all(
        are_batches_equal(first, second) for first, second in zip(prefetched_batches, expected_batches, strict=True)
    )


def test_a_prefetched_batch_is_returned_although_steps_were_added() -> None:
    """A sampler that always discarded its prefetched batch would pass the test above too."""
    recorder = StepRecorder(capacity=1000, frame_stack=3)
    recorder.play_episodes(np.random.default_rng(0), steps=1500, max_length=20)
    sampler = make_sampler(recorder.replay, prefetch=True)
    sampler.sample()
    assert sampler._pending is not None
    pending_batch = sampler._pending.batch
    recorder.start_episode()
    for _ in range(count_reserve_steps(1000) - 2):
        recorder.add(terminated=False)
    assert sampler.sample() is pending_batch.result(timeout=60)
    sampler.close()


def test_batches_are_consistent_while_another_thread_adds_steps() -> None:
    """A thread overwrites a small ring as fast as it can while batches are made."""
    recorder = StepRecorder(capacity=400, frame_stack=3)
    rng = np.random.default_rng(0)
    recorder.play_episodes(rng, steps=2000, max_length=20)
    stop = threading.Event()

    def add_steps() -> None:
        while not stop.is_set():
            recorder.play_episodes(rng, steps=len(recorder.episode_start) + 1, max_length=20)
            time.sleep(0)

    sampler = make_sampler(recorder.replay, prefetch=True, batch_size=200)
    writer = threading.Thread(target=add_steps)
    writer.start()
    try:
        samples = []
        for _ in range(150):
            batch = clone_batch(sampler.sample())
            samples.append((batch, recorder.replay.inserted))
    finally:
        stop.set()
        writer.join(60)
        sampler.close()
    assert recorder.replay.inserted > 3000, "the ring was overwritten while batches were made"
    reference = ReferenceSteps.from_recorder(recorder)
    for batch, inserted in samples:
        # Episodes that were still running then may have grown since.
        complete_rows = (reference.episode_end[batch.indices.numpy()] < inserted - 50).nonzero()[0]
        complete_batch = batch.map(itemgetter(complete_rows))
        reference.assert_matches(complete_batch, replay=recorder.replay, n_step=3, inserted=0)


def test_a_batch_is_unchanged_until_the_next_sample() -> None:
    replay = make_filled_replay()
    for prefetch in (False, True):
        sampler = make_sampler(replay, prefetch=prefetch)
        batch = sampler.sample()
        copy = clone_batch(batch)
        time.sleep(0.05)  # the next batch is being made
        assert are_batches_equal(batch, copy)
        sampler.close()


def test_batches_alternate_between_two_buffers() -> None:
    replay = make_filled_replay()
    sampler = make_sampler(replay, prefetch=True)
    addresses = {sampler.sample().views.data_ptr() for _ in range(10)}
    sampler.close()
    assert len(addresses) == 2


def test_a_closed_sampler_leaves_no_thread_behind() -> None:
    replay = make_filled_replay()
    before = set(threading.enumerate())
    for prefetch in (False, True):
        sampler = make_sampler(replay, prefetch=prefetch)
        sampler.sample()
        assert set(threading.enumerate()) > before
        sampler.close()
        assert set(threading.enumerate()) == before


def test_an_error_in_the_prefetch_thread_is_raised_by_sample() -> None:
    recorder = StepRecorder(capacity=640, frame_stack=1)
    reserve = count_reserve_steps(640)
    recorder.start_episode()
    for _ in range(4):
        recorder.add(terminated=False)
    while recorder.replay.inserted < 640 - reserve:
        recorder.start_episode()
    sampler = make_sampler(recorder.replay, prefetch=True)
    sampler.sample()
    for _ in range(reserve - 1):
        recorder.start_episode()
    sampler.sample()  # made while the only windows were still in the ring
    with pytest.raises(RuntimeError, match="no window of up to 3 steps"):
        sampler.sample()
    sampler.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "invalid batch_size or n_step: expected at least 1, got 0 and 3"),
        ({"n_step": 0}, "invalid batch_size or n_step: expected at least 1, got 16 and 0"),
        ({"discount": 1.1}, "invalid discount: expected 0 to 1, got 1.1"),
    ],
)
def test_invalid_options_are_refused(changes: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"batch_size": 16, "n_step": 3, "discount": GAMMA, "seed": 0, **changes}
    with pytest.raises(ValueError, match=message):
        Sampler(make_filled_replay(), **options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_batches_equal_cpu_batches_and_are_never_overwritten() -> None:
    replay, device = make_filled_replay(), torch.device("cuda")
    cuda_sampler = Sampler(replay, batch_size=16, n_step=3, discount=GAMMA, seed=0, prefetch=True, device=device)
    cpu_sampler = make_sampler(replay)
    batches = [cuda_sampler.sample() for _ in range(20)]  # all at once: none may be overwritten by a later one
    assert all(batch.views.device.type == "cuda" for batch in batches)
    assert all(are_batches_equal(batch.to(torch.device("cpu")), cpu_sampler.sample()) for batch in batches)
    cuda_sampler.close()
