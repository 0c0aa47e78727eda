"""Physics that breaks and cameras that fail while a run with MEM is trained: it ends, and its records say what was."""

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
from tests.unit.training.test_runner import poisoning

# Cameras that are broken on purpose are also warned of; tests/unit/envs/wrappers/test_sanity.py has that.
pytestmark = pytest.mark.filterwarnings("ignore::manyview.envs.ViewWarning")

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)


def of_kind(folder: RunDir, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_records(folder.metrics_file) if record["kind"] == kind]


@pytest.mark.quality("S4")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_a_broken_camera_ends_with_a_finite_bonus(
    kind: FaultKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [Fault(view="row", kind=kind, lasts="episode", probability=0.1)]
    monkeypatch.setattr(factory, "make", lambda task, **options: make(task, **{**options, "faults": faults}))
    folder = RunDir(tmp_path / "run")
    assert run(make_short_config(), folder)
    train = of_kind(folder, "train")
    assert train
    assert all(math.isfinite(record["reward_int"]) and record["finite"] == 1 for record in train)
    present = [record["present/row"] for record in train]
    absent = sum(record.get("absent", {}).get("row", 0) for record in of_kind(folder, "episode"))
    assert (min(present) < 1, absent > 0) == (kind == "gone", kind == "gone")


@pytest.mark.quality("L5")
@pytest.mark.simulator
def test_a_run_ends_through_physics_errors_and_a_camera_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breakage = Breakage(np.random.default_rng(0))
    for place in breakage.patches:
        monkeypatch.setattr(*place)
    steps, repeat = 1500, 2
    config = make_short_config(
        task="dmc/cheetah_run",
        env={"image_size": 16, "action_repeat": repeat},
        schedule={"frames": steps * repeat, "random_steps": steps, "seed_frames": (steps - 40) * repeat},
        evaluation={"every_frames": steps * repeat, "episodes": 1},
        logging={"checkpoint_every_frames": steps},
    )
    folder = RunDir(tmp_path / "run")
    assert run(config, folder)
    episodes = of_kind(folder, "episode")
    assert 0 < sum("physics_error" in record for record in episodes) <= breakage.physics_errors
    assert sum(record.get("absent", {}).get("side", 0) for record in episodes) > 0
    assert all(math.isfinite(record["reward_int"]) for record in of_kind(folder, "train"))


@pytest.mark.quality("S3")
def test_bad_updates_after_a_resume_lead_back_to_the_same_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_short_config(logging={"keep_replay": True})
    poisoning(monkeypatch, range(40, 43))
    whole, folder = RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    run(config, whole)
    session = Runner(config, folder)
    advance_to(session, 42)
    abandon_runner(session)
    run(config, folder)
    assert read_warnings(folder)[-1].endswith("back to the agent of 000000030")
    assert compare_runs(whole, folder) == []
