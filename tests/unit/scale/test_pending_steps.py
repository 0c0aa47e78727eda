"""Pending steps: steps of delivered chunks, taken one by one with their frames."""

import pytest

from manyview.scale.trainer import PendingSteps


def test_steps_are_popped_one_by_one_with_all_their_frames() -> None:
    pending = PendingSteps()
    pending.add(3, 10)
    pending.add(0, 0)
    pending.add(2, 8)
    assert (pending.steps, pending.frames) == (5, 18)
    assert [pending.pop() for _ in range(5)] == [3, 3, 4, 4, 4]
    assert pending.steps == pending.frames == 0


def test_pending_steps_are_restored_from_their_state() -> None:
    pending, restored = PendingSteps(), PendingSteps()
    pending.add(3, 12)
    pending.pop()
    restored.load_state(pending.get_state())
    assert (restored.steps, restored.frames) == (2, 8)
    with pytest.raises(ValueError, match="list of steps and frames"):
        restored.load_state({"chunks": [[0, 1]]})
