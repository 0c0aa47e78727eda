"""Processes that tests start are ended, and their answers are not taken for another's."""

from pathlib import Path

import pytest

from benchmarks.kills import Case
from benchmarks.launcher import Launcher, Request

pytestmark = pytest.mark.xdist_group("processes")


def test_a_child_that_does_not_end_is_killed_and_the_next_one_is_told_apart(tmp_path: Path, launcher: Launcher) -> None:
    (tmp_path / "hang").touch()
    case, said = Case("tests.support.misbehaving_envs:HangingResetEnv", "drqv2+mem"), str(tmp_path / "said")
    variables = {"HANG": str(tmp_path / "hang")}
    hung = Request(case.command(tmp_path / "run"), output=said, watched_dirs=[], environment=variables)
    running = launcher.start(hung)
    with pytest.raises(TimeoutError, match="still running after 1 s"):
        running.wait(at_most_s=1)
    assert running.wait().was_killed
    abandoned = launcher.start(hung)  # as by a test that fails before it waits
    ended = launcher.start(Request(["--version"], output=said, watched_dirs=[])).wait(at_most_s=60)
    assert (ended.status, ended.output.split()[0]) == (0, "manyview")
    assert abandoned.wait().was_killed
