"""The launcher kills children that do not end, and does not mix up their results."""

from pathlib import Path

import pytest

from benchmarks.kills import Case
from benchmarks.launcher import Launcher, Request

pytestmark = pytest.mark.xdist_group("processes")


def test_a_child_that_does_not_end_is_killed_and_not_confused_with_the_next(tmp_path: Path, launcher: Launcher) -> None:
    (tmp_path / "hang").touch()
    case, output = Case("tests.support.misbehaving_envs:HangingResetEnv", "drqv2+mem"), str(tmp_path / "said")
    variables = {"HANG": str(tmp_path / "hang")}
    hanging_request = Request(case.command(tmp_path / "run"), output=output, watched_dirs=[], environment=variables)
    child = launcher.start(hanging_request)
    with pytest.raises(TimeoutError, match="still running after 1 s"):
        child.wait(at_most_s=1)
    assert child.wait().was_killed
    abandoned_child = launcher.start(hanging_request)  # as by a test that fails before it waits
    result = launcher.start(Request(["--version"], output=output, watched_dirs=[])).wait(at_most_s=60)
    assert (result.status, result.output.split()[0]) == (0, "manyview")
    assert abandoned_child.wait().was_killed
