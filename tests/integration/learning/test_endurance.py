"""Training leaves nothing behind but what it says."""

import gc
import tracemalloc
from itertools import pairwise

import pytest

from manyview.training.runner import make_trainer
from tests.support.runs import make_short_config, make_short_rollout_config


@pytest.mark.quality("E2")
@pytest.mark.parametrize(
    "method",
    [
        "drqv2+mem",
        pytest.param("sac+re3", marks=pytest.mark.long),
        pytest.param("ppo+mem", marks=pytest.mark.long),
        pytest.param("ppo+ride", marks=pytest.mark.long),
    ],
)
def test_acting_adding_sampling_and_updating_leaves_nothing_behind(method: str) -> None:
    """100 times all of it, in a ring that wraps, end where the 100 before them ended."""
    on_policy = method.startswith("ppo")
    trainer = make_trainer(
        make_short_rollout_config(method) if on_policy else make_short_config(method, replay={"capacity": 100})
    )

    def repeat(times: int) -> int:
        for _ in range(times):
            trainer.advance()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        kept = [repeat(100) for _ in range(6)]
    finally:
        tracemalloc.stop()
        trainer.close()
    # Small caches fill in one round or another; what leaks grows in every one, a tensor by more than 50 bytes a step.
    assert min(later - earlier for earlier, later in pairwise(kept)) < 100 * 50
