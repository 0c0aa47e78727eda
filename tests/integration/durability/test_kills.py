"""Killed by SIGKILL at random moments, a third of them inside a save; the same command again, until it has finished."""

from pathlib import Path
from random import Random

import pytest

from benchmarks.kills import CASES, Case, run_by_command_line, run_reference, run_with_kills
from benchmarks.launcher import Launcher
from benchmarks.run_comparison import compare_runs
from manyview.training import RunDir

KILLS = 5
"""Of each case: twenty-five in all. `python -m benchmarks.kills` makes two hundred."""

pytestmark = pytest.mark.xdist_group("processes")

MARKS = {
    ("dmc", "drqv2+mem"): (pytest.mark.simulator,),
    ("dmc", "sac+mem"): (pytest.mark.simulator, pytest.mark.long),
}


@pytest.mark.attack("SIGKILL at any moment, and the same command again: bit-identical with a run nobody disturbed")
@pytest.mark.quality("D1")
@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{case.task} {case.method}", marks=MARKS.get((case.task[:3], case.method), ()))
        for case in CASES
    ],
)
def test_killed_runs_end_as_if_nothing_had_happened(
    case: Case, tmp_path: Path, launcher: Launcher, other_launcher: Launcher
) -> None:
    whole = run_reference(case, tmp_path / "whole", other_launcher)
    random = Random(case.method)  # noqa: S311
    kills = inside_a_save = 0
    while kills < KILLS:
        folder = tmp_path / f"killed{kills}"
        died, in_saves = run_with_kills(whole, folder, launcher, random, kills=KILLS - kills)
        kills, inside_a_save = kills + died, inside_a_save + in_saves
        assert compare_runs(whole.run_dir, RunDir(folder)) == []
    assert inside_a_save >= KILLS // 3


@pytest.mark.quality("D1")
def test_the_real_command_gives_the_same_as_one_that_is_forked(tmp_path: Path, launcher: Launcher) -> None:
    case = CASES[0]
    whole = run_reference(case, tmp_path / "forked", launcher)
    assert compare_runs(whole.run_dir, run_by_command_line(case, tmp_path / "command")) == []


def test_a_difference_is_found(tmp_path: Path, launcher: Launcher) -> None:
    """The comparison above could not fail otherwise."""
    one, other = (
        run_reference(Case(CASES[0].task, CASES[0].method, seed), tmp_path / str(seed), launcher).run_dir
        for seed in (1, 2)
    )
    found = "\n".join(compare_runs(one, other))
    for part in ("agent/tensors", "agent/optimizers", "agent/generators", "env/", "replay: /steps/action", "record /"):
        assert part in found
