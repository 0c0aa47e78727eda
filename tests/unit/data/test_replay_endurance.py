"""Memory use of adding to a replay buffer and sampling from it."""

import gc
import tracemalloc
from itertools import pairwise

import pytest

from manyview.data import Sampler
from manyview.envs import Fault, wrap
from tests.support.replay import NoiseEnv, make_replay_buffer, record_steps


@pytest.mark.quality("E2")
@pytest.mark.filterwarnings("ignore::manyview.envs.ViewWarning")
@pytest.mark.parametrize("prefetch", [False, True])
def test_adding_and_sampling_does_not_leak_memory(prefetch: bool) -> None:
    """Traced memory does not grow over rounds of 200 steps and batches in a ring that wraps."""
    env = wrap(NoiseEnv(), faults=[Fault(view="side", kind="gone", probability=0.1)])
    replay = make_replay_buffer(env, capacity=100, frame_stack=3)
    record_steps(env, replay, steps=200)
    sampler = Sampler(replay, batch_size=32, n_step=3, discount=0.99, seed=0, prefetch=prefetch)

    def measure_round(steps: int) -> int:
        observation, _ = env.reset(seed=0)
        replay.start_episode(observation)
        for _ in range(steps):
            observation, reward, terminated, truncated, _ = env.step(0)
            replay.add(0, float(reward), terminated, observation)
            if terminated or truncated:
                replay.start_episode(env.reset()[0])
            sampler.sample()
        sampler.load_state(sampler.get_state())  # drops the prefetched batch
        del observation
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        traced_bytes = [measure_round(200) for _ in range(4)]
    finally:
        tracemalloc.stop()
        sampler.close()
    # numpy's small caches fill ever more slowly; one leaked array per step is 20,000 bytes in every round.
    assert min(later - earlier for earlier, later in pairwise(traced_bytes)) < 5_000
