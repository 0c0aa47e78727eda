import pytest

from manyview.scale.trainer import PendingSteps


def test_steps_come_out_one_by_one_with_all_their_frames() -> None:
    backlog = PendingSteps()
    backlog.add(3, 10)
    backlog.add(0, 0)
    backlog.add(2, 8)
    assert (backlog.steps, backlog.frames) == (5, 18)
    assert [backlog.pop() for _ in range(5)] == [3, 3, 4, 4, 4]
    assert backlog.steps == backlog.frames == 0


def test_a_backlog_goes_on_from_its_state() -> None:
    backlog, again = PendingSteps(), PendingSteps()
    backlog.add(3, 12)
    backlog.pop()
    again.load_state(backlog.get_state())
    assert (again.steps, again.frames) == (2, 8)
    with pytest.raises(ValueError, match="list of steps and frames"):
        again.load_state({"chunks": [[0, 1]]})
