"""Counters of a run, and validation of their state and of random states."""

from typing import Any

import numpy as np
import pytest

from manyview.training.counters import Counters
from manyview.utils.seeding import get_rng_state, restore_rng


def test_counters_are_restored_from_their_state() -> None:
    counters, restored = Counters(frames=40, steps=10, updates=3, episodes=2, rolled_back_at=2), Counters()
    restored.load_state(counters.get_state())
    assert restored == counters


@pytest.mark.parametrize("name", [*Counters().get_state()])
@pytest.mark.parametrize("value", [-2, 1.0, True, "1", None])
def test_an_invalid_or_missing_counter_is_refused(name: str, value: Any) -> None:
    state = Counters().get_state() | {name: value}
    if value is None:
        del state[name]
    with pytest.raises(ValueError, match=f"invalid counter `{name}`"):
        Counters().load_state(state)


def test_only_the_last_rollback_may_be_minus_one() -> None:
    for name in Counters().get_state():
        state = Counters().get_state() | {name: -1}
        if name == "rolled_back_at":
            Counters().load_state(state)
            continue
        with pytest.raises(ValueError, match="at least 0, got -1"):
            Counters().load_state(state)


@pytest.mark.parametrize("entry", ["bit_generator", "state", "has_uint32", "uinteger"])
def test_a_random_state_without_an_entry_is_refused(entry: str) -> None:
    state = get_rng_state(np.random.default_rng(0))
    assert restore_rng(state).integers(1000) == np.random.default_rng(0).integers(1000)
    del state[entry]
    with pytest.raises(ValueError, match="invalid random generator state"):
        restore_rng(state)
