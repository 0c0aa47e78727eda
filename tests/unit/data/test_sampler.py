"""Batches depend on the seed, their number and the replay alone; making them ahead changes nothing."""

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
from tests.unit.data.test_n_step import GAMMA, Counted, Truth


def filled(*, capacity: int = 200, steps: int = 150) -> ReplayBuffer:
    env = wrap(NoiseEnv(), frame_stack=3)
    replay = make_replay_buffer(env, capacity=capacity, frame_stack=3)
    record_steps(env, replay, steps=steps)
    return replay


def sampler(replay: ReplayBuffer, *, seed: int = 0, prefetch: bool = False, batch_size: int = 16) -> Sampler:
    return Sampler(replay, batch_size=batch_size, n_step=3, discount=GAMMA, seed=seed, prefetch=prefetch)


def test_a_batch_has_the_shapes_and_types_it_promises() -> None:
    replay = filled()
    batch = sampler(replay).sample()
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
    replay = filled()
    batch = sampler(replay, batch_size=1).sample()
    views, mask = replay.stack_frames(batch.indices.numpy())
    assert np.array_equal(batch.views.numpy(), views)
    assert np.array_equal(batch.mask.numpy(), mask)
    assert batch.action.item() == replay.steps["action"][int(batch.indices) % replay.capacity]


def test_the_next_indices_are_those_of_the_next_views() -> None:
    replay = filled()
    batch = sampler(replay, batch_size=64).sample()
    views, mask = replay.stack_frames(batch.next_indices.numpy())
    assert np.array_equal(batch.next_views.numpy(), views)
    assert np.array_equal(batch.next_mask.numpy(), mask)
    assert set((batch.next_indices - batch.indices).tolist()) == {1, 2, 3}, "shorter at the end of an episode"


def test_a_batch_depends_on_its_seed_and_number_alone() -> None:
    replay = filled()
    one, other, elsewhere = sampler(replay), sampler(replay), sampler(replay, seed=1)
    first, second = clone_batch(one.sample()), clone_batch(one.sample())
    assert not are_batches_equal(first, second)
    assert not are_batches_equal(first, elsewhere.sample())
    np.random.default_rng(3).random(7)  # whatever happens elsewhere
    torch.rand(5)
    assert are_batches_equal(first, other.sample())
    assert are_batches_equal(second, other.sample())


def test_a_sampler_goes_on_from_its_state() -> None:
    replay = filled()
    for prefetch in (False, True):
        one, other = sampler(replay, prefetch=prefetch), sampler(replay, prefetch=prefetch)
        for _ in range(3):
            one.sample()
        state = one.get_state()
        assert state == {"drawn": 3, "horizon": replay.inserted}
        other.sample()
        other.load_state(state)
        assert are_batches_equal(one.sample(), other.sample())
        one.close()
        other.close()


@pytest.mark.parametrize("prefetch", [False, True])
def test_the_newest_step_is_drawn_by_the_next_batch_but_one(prefetch: bool) -> None:
    counted = Counted(capacity=1000, frame_stack=1)
    counted.live(np.random.default_rng(0), steps=20, longest=20)
    counted.begin()
    batches = sampler(counted.replay, prefetch=prefetch, batch_size=1000)
    batches.sample()
    for _ in range(4):
        counted.add(terminated=False)
    newest = counted.replay.inserted - 4  # of three steps, which is a window
    assert [newest in batches.sample().indices.tolist() for _ in range(2)] == [False, True]
    batches.close()


def taken(*, prefetch: bool, capacity: int, pauses: list[int], folder: Any = None) -> Iterator[Batch]:
    """A batch after every so many steps, from a ring that wraps."""
    env = wrap(NoiseEnv())
    replay = make_replay_buffer(env, capacity=capacity, frame_stack=3, directory=folder)
    env.action_space.seed(0)
    steps = play_steps(env, steps=10**6)
    batches = sampler(replay, prefetch=prefetch)
    for pause in [40, *pauses]:
        for _ in range(pause):
            action, reward, terminated, observation, _ = next(steps)
            if action is None:
                replay.start_episode(observation)
            else:
                replay.add(action, reward, terminated, observation)
        yield batches.sample()
    batches.close()


@pytest.mark.parametrize("capacity", [30, 64, 200, 1000])
@pytest.mark.parametrize("on_disk", [False, True])
def test_making_batches_ahead_does_not_change_them(capacity: int, on_disk: bool, tmp_path: Any) -> None:
    """With few steps between two batches and with more than the reserve, in rings that wrap several times."""
    pauses = np.random.default_rng(capacity).choice([0, 1, 1, 2, 3, 8, 40], size=120).tolist()
    assert any(pause > count_reserve_steps(capacity) for pause in pauses)
    folder = tmp_path if on_disk else None
    ahead = taken(prefetch=True, capacity=capacity, pauses=pauses, folder=folder)
    in_time = taken(prefetch=False, capacity=capacity, pauses=pauses)
    assert all(are_batches_equal(one, other) for one, other in zip(ahead, in_time, strict=True))


def test_a_batch_made_ahead_is_the_one_that_is_given_although_steps_were_added() -> None:
    """Otherwise making it ahead would change nothing because it would be for nothing."""
    counted = Counted(capacity=1000, frame_stack=3)
    counted.live(np.random.default_rng(0), steps=1500, longest=20)
    batches = sampler(counted.replay, prefetch=True)
    batches.sample()
    assert batches._pending is not None
    made_ahead = batches._pending.batch
    counted.begin()
    for _ in range(count_reserve_steps(1000) - 2):
        counted.add(terminated=False)
    assert batches.sample() is made_ahead.result(timeout=60)
    batches.close()


def test_what_is_added_meanwhile_by_another_thread_tears_no_batch() -> None:
    """One thread adds as fast as it can to a small ring, so that batches are overwritten while they are made."""
    counted = Counted(capacity=400, frame_stack=3)
    rng = np.random.default_rng(0)
    counted.live(rng, steps=2000, longest=20)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            counted.live(rng, steps=len(counted.first) + 1, longest=20)
            time.sleep(0)

    batches = sampler(counted.replay, prefetch=True, batch_size=200)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = []
        for _ in range(150):
            batch = clone_batch(batches.sample())
            seen.append((batch, counted.replay.inserted))
    finally:
        stop.set()
        writer.join(60)
        batches.close()
    assert counted.replay.inserted > 3000, "the ring was overwritten meanwhile"
    truth = Truth.of(counted)
    for batch, inserted in seen:
        # The end of an episode that was still running then may have moved on.
        later = (truth.last[batch.indices.numpy()] < inserted - 50).nonzero()[0]
        old = batch.map(itemgetter(later))
        truth.assert_holds(old, replay=counted.replay, n_step=3, inserted=0)


def test_a_batch_is_good_until_the_next_is_asked_for() -> None:
    replay = filled()
    for prefetch in (False, True):
        batches = sampler(replay, prefetch=prefetch)
        first = batches.sample()
        kept = clone_batch(first)
        time.sleep(0.05)  # the next one is being made
        assert are_batches_equal(first, kept)
        batches.close()


def test_batches_use_the_same_memory_again() -> None:
    replay = filled()
    batches = sampler(replay, prefetch=True)
    places = {batches.sample().views.data_ptr() for _ in range(10)}
    batches.close()
    assert len(places) == 2


def test_a_closed_sampler_leaves_no_thread_behind() -> None:
    replay = filled()
    before = set(threading.enumerate())
    for prefetch in (False, True):
        batches = sampler(replay, prefetch=prefetch)
        batches.sample()
        assert set(threading.enumerate()) > before
        batches.close()
        assert set(threading.enumerate()) == before


def test_an_error_in_the_thread_is_raised_where_the_batch_is_asked_for() -> None:
    counted = Counted(capacity=640, frame_stack=1)
    reserve = count_reserve_steps(640)
    counted.begin()
    for _ in range(4):
        counted.add(terminated=False)
    while counted.replay.inserted < 640 - reserve:
        counted.begin()
    batches = sampler(counted.replay, prefetch=True)
    batches.sample()
    for _ in range(reserve - 1):
        counted.begin()
    batches.sample()  # made when the only windows were still there
    with pytest.raises(RuntimeError, match="no window of up to 3 steps"):
        batches.sample()
    batches.close()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"batch_size": 0}, "invalid batch_size or n_step: expected at least 1, got 0 and 3"),
        ({"n_step": 0}, "invalid batch_size or n_step: expected at least 1, got 16 and 0"),
        ({"discount": 1.1}, "invalid discount: expected 0 to 1, got 1.1"),
    ],
)
def test_a_sampler_that_makes_no_sense_is_refused(wrong: dict[str, Any], says: str) -> None:
    options: dict[str, Any] = {"batch_size": 16, "n_step": 3, "discount": GAMMA, "seed": 0, **wrong}
    with pytest.raises(ValueError, match=says):
        Sampler(filled(), **options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_batches_on_a_cuda_device_are_the_same_and_the_callers() -> None:
    replay, device = filled(), torch.device("cuda")
    there = Sampler(replay, batch_size=16, n_step=3, discount=GAMMA, seed=0, prefetch=True, device=device)
    here = sampler(replay)
    kept = [there.sample() for _ in range(20)]  # all at once: none may be overwritten by a later one
    assert all(batch.views.device.type == "cuda" for batch in kept)
    assert all(are_batches_equal(batch.to(torch.device("cpu")), here.sample()) for batch in kept)
    there.close()
