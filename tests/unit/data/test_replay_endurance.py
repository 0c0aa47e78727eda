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
def test_adding_and_sampling_leaves_nothing_behind(prefetch: bool) -> None:
    """200 times a step and a batch, in a ring that wraps, end where the 200 before them ended."""
    env = wrap(NoiseEnv(), faults=[Fault(view="side", kind="gone", probability=0.1)])
    replay = make_replay_buffer(env, capacity=100, frame_stack=3)
    record_steps(env, replay, steps=200)
    sampler = Sampler(replay, batch_size=32, n_step=3, discount=0.99, seed=0, prefetch=prefetch)

    def repeat(times: int) -> int:
        observation, _ = env.reset(seed=0)
        replay.start_episode(observation)
        for _ in range(times):
            observation, reward, terminated, truncated, _ = env.step(0)
            replay.add(0, float(reward), terminated, observation)
            if terminated or truncated:
                replay.start_episode(env.reset()[0])
            sampler.sample()
        sampler.load_state(sampler.get_state())  # forgets the batch that is being made ahead
        del observation
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        kept = [repeat(200) for _ in range(4)]
    finally:
        tracemalloc.stop()
        sampler.close()
    # Small caches of numpy's fill ever more slowly; one array kept each time would be 20,000 bytes in every round.
    assert min(later - earlier for earlier, later in pairwise(kept)) < 5_000
