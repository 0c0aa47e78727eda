"""Runs killed at random moments, a third of them inside a save, finish by the same command."""

from pathlib import Path
from random import Random

import pytest

from benchmarks.kills import CASES, Case, run_by_command_line, run_reference, run_with_kills
from benchmarks.launcher import Launcher
from benchmarks.run_comparison import compare_runs
from manyview.training import RunDir

KILLS = 5
"""Kills of each case, 25 in total; `python -m benchmarks.kills` makes 200."""

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
def test_killed_runs_end_like_uninterrupted_ones(
    case: Case, tmp_path: Path, launcher: Launcher, other_launcher: Launcher
) -> None:
    reference = run_reference(case, tmp_path / "whole", other_launcher)
    random = Random(case.method)  # noqa: S311
    kills = kills_in_saves = 0
    while kills < KILLS:
        path = tmp_path / f"killed{kills}"
        new_kills, new_kills_in_saves = run_with_kills(reference, path, launcher, random, kills=KILLS - kills)
        kills, kills_in_saves = kills + new_kills, kills_in_saves + new_kills_in_saves
        assert compare_runs(reference.run_dir, RunDir(path)) == []
    assert kills_in_saves >= KILLS // 3


@pytest.mark.quality("D1")
def test_the_real_command_gives_the_same_as_one_that_is_forked(tmp_path: Path, launcher: Launcher) -> None:
    case = CASES[0]
    reference = run_reference(case, tmp_path / "forked", launcher)
    assert compare_runs(reference.run_dir, run_by_command_line(case, tmp_path / "command")) == []


def test_a_difference_is_found(tmp_path: Path, launcher: Launcher) -> None:
    """Runs with different seeds differ, so the comparison can fail."""
    first, second = (
        run_reference(Case(CASES[0].task, CASES[0].method, seed), tmp_path / str(seed), launcher).run_dir
        for seed in (1, 2)
    )
    differences = "\n".join(compare_runs(first, second))
    for part in ("agent/tensors", "agent/optimizers", "agent/generators", "env/", "replay: /steps/action", "record /"):
        assert part in differences
