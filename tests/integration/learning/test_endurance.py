"""Training does not leak memory."""

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
def test_training_does_not_leak_memory(method: str) -> None:
    """Memory does not grow over 100 trainer steps, with a replay buffer that wraps around."""
    on_policy = method.startswith("ppo")
    trainer = make_trainer(
        make_short_rollout_config(method) if on_policy else make_short_config(method, replay={"capacity": 100})
    )

    def advance_and_measure(steps: int) -> int:
        for _ in range(steps):
            trainer.advance()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        memory_bytes = [advance_and_measure(100) for _ in range(6)]
    finally:
        tracemalloc.stop()
        trainer.close()
    # Small caches grow in some rounds; a leak grows in every round, by more than 50 bytes per step for a tensor.
    assert min(later - earlier for earlier, later in pairwise(memory_bytes)) < 100 * 50
