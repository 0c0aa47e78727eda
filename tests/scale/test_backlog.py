import pytest

from manyview.scale.backlog import Backlog


def test_steps_come_out_one_by_one_with_all_their_frames() -> None:
    backlog = Backlog()
    backlog.put(3, 10)
    backlog.put(0, 0)
    backlog.put(2, 8)
    assert (backlog.steps, backlog.frames) == (5, 18)
    assert [backlog.take() for _ in range(5)] == [3, 3, 4, 4, 4]
    assert backlog.steps == backlog.frames == 0


def test_a_backlog_goes_on_from_its_state() -> None:
    backlog, again = Backlog(), Backlog()
    backlog.put(3, 12)
    backlog.take()
    again.load_state(backlog.state())
    assert (again.steps, again.frames) == (2, 8)
    with pytest.raises(ValueError, match="list of steps and frames"):
        again.load_state({"chunks": [[0, 1]]})
