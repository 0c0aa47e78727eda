"""Runs with MEM finish despite physics errors and failing cameras, and record them."""

import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from benchmarks.run_comparison import compare_runs
from benchmarks.soak import Breakage
from manyview.envs import Fault, make
from manyview.envs.wrappers.faults import FaultKind
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, factory, run
from manyview.training.runner import Runner
from tests.support.runners import abandon_runner, advance_to, read_warnings
from tests.support.runs import make_short_config
from tests.unit.training.test_runner import inject_nan_rewards

# tests/unit/envs/wrappers/test_sanity.py tests the warnings about broken cameras.
pytestmark = pytest.mark.filterwarnings("ignore::manyview.envs.ViewWarning")

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)


def list_records(run_dir: RunDir, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_records(run_dir.metrics_file) if record["kind"] == kind]


@pytest.mark.quality("S4")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_a_broken_camera_ends_with_a_finite_bonus(
    kind: FaultKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [Fault(view="row", kind=kind, lasts="episode", probability=0.1)]
    monkeypatch.setattr(factory, "make", lambda task, **options: make(task, **{**options, "faults": faults}))
    run_dir = RunDir(tmp_path / "run")
    assert run(make_short_config(), run_dir)
    train_records = list_records(run_dir, "train")
    assert train_records
    assert all(math.isfinite(record["reward_int"]) and record["finite"] == 1 for record in train_records)
    present = [record["present/row"] for record in train_records]
    absent = sum(record.get("absent", {}).get("row", 0) for record in list_records(run_dir, "episode"))
    assert (min(present) < 1, absent > 0) == (kind == "gone", kind == "gone")


@pytest.mark.quality("L5")
@pytest.mark.simulator
def test_a_run_finishes_despite_physics_errors_and_a_failing_camera(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breakage = Breakage(np.random.default_rng(0))
    for patch in breakage.patches:
        monkeypatch.setattr(*patch)
    steps, repeat = 1500, 2
    config = make_short_config(
        task="dmc/cheetah_run",
        env={"image_size": 16, "action_repeat": repeat},
        schedule={"frames": steps * repeat, "random_steps": steps, "seed_frames": (steps - 40) * repeat},
        evaluation={"every_frames": steps * repeat, "episodes": 1},
        logging={"checkpoint_every_frames": steps},
    )
    run_dir = RunDir(tmp_path / "run")
    assert run(config, run_dir)
    episodes = list_records(run_dir, "episode")
    assert 0 < sum("physics_error" in record for record in episodes) <= breakage.physics_errors
    assert sum(record.get("absent", {}).get("side", 0) for record in episodes) > 0
    assert all(math.isfinite(record["reward_int"]) for record in list_records(run_dir, "train"))


@pytest.mark.quality("S3")
def test_bad_updates_after_a_resume_roll_back_to_the_same_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_short_config(logging={"keep_replay": True})
    inject_nan_rewards(monkeypatch, range(40, 43))
    reference, run_dir = RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    run(config, reference)
    runner = Runner(config, run_dir)
    advance_to(runner, 42)
    abandon_runner(runner)
    run(config, run_dir)
    assert read_warnings(run_dir)[-1].endswith("back to the agent of 000000030")
    assert compare_runs(reference, run_dir) == []
