"""Training leaves nothing behind but what it says."""

import gc
import tracemalloc

import pytest

from manyview.train.trainer import Trainer
from tests.train.runs import short_run


@pytest.mark.quality("E2")
@pytest.mark.parametrize("method", ["drqv2+mem", "sac+re3"])
def test_acting_adding_sampling_and_updating_leaves_nothing_behind(method: str) -> None:
    """400 times all of it, in a ring that wraps, end where 400 before them ended."""
    trainer = Trainer(short_run(method, replay={"capacity": 100}))

    def repeat(times: int) -> int:
        for _ in range(times):
            trainer.advance()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before, after = repeat(400), repeat(400)
    finally:
        tracemalloc.stop()
        trainer.close()
    # Small caches fill for a while. One tensor, however small, kept each time would be more than 100 bytes a step.
    assert after - before < 400 * 100
