"""Hours and memory of a sweep, from one measurement per method."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from manyview.cli.main import main
from manyview.scale import sweep_estimate
from manyview.scale.sweep import PlannedRun
from manyview.scale.sweep_estimate import GroupEstimate, estimate_groups, format_total
from manyview.training import RunConfig, RunDir
from tests.support.runs import make_short_config


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    """Restore torch's thread count, which a trial sets for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def make_estimate(config: RunConfig) -> Any:
    """Return an estimate of two hours, 2 GB of data and 1 GB for an update."""
    return SimpleNamespace(config=config, seconds=7200.0, data_bytes=2 * 10**9, update_bytes=10**9)


@pytest.fixture
def measured_configs(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Configs passed to `estimate_run`, which returns a constant estimate."""
    configs: list[RunConfig] = []

    def estimate(config: RunConfig) -> Any:
        configs.append(config)
        return make_estimate(config)

    monkeypatch.setattr(sweep_estimate, "estimate_run", estimate)
    return configs


def plan_runs(directory: Path, *methods: str, seeds: int = 3, device: str = "cpu") -> list[PlannedRun]:
    """Return planned runs of two tasks with each method and seed."""
    tasks = ("toy/hidden_goal_continuous", "toy/identity_continuous")
    return [
        PlannedRun(
            make_short_config(method, task=task, seed=seed, compute={"device": device}),
            directory / task / method / f"seed{seed}",
        )
        for seed in range(1, seeds + 1)
        for task in tasks
        for method in methods
    ]


def test_a_method_is_measured_once_and_counts_all_its_runs(tmp_path: Path, measured_configs: list[RunConfig]) -> None:
    torch.set_num_threads(2)
    groups = list(estimate_groups(plan_runs(tmp_path, "sac+none", "drqv2+mem")))
    assert [(group.name, group.task, group.runs) for group in groups] == [
        ("drqv2+mem", "toy/hidden_goal_continuous", 6),
        ("sac+none", "toy/hidden_goal_continuous", 6),
    ]
    assert len(measured_configs) == 2
    assert groups[0].total_hours == 2 * 2 * 6  # hours, cores, runs
    assert groups[0].memory_bytes == 3 * 10**9
    assert format_total(groups) == "12 runs, 48.0 core-hours, at most 3.0 GB each"


@pytest.mark.usefixtures("measured_configs")
def test_finished_runs_take_no_more_hours(tmp_path: Path) -> None:
    runs = plan_runs(tmp_path, "sac+none")
    for run in runs[:2]:
        run_dir = RunDir(run.run_dir)
        run_dir.initialize(run.config, {})
        run_dir.mark_finished()
    (group,) = estimate_groups(runs)
    assert group.runs == 4


@pytest.mark.usefixtures("measured_configs")
def test_hours_on_an_accelerator_do_not_count_cores(tmp_path: Path) -> None:
    (group,) = estimate_groups(plan_runs(tmp_path, "sac+none", device="cuda"))
    assert (group.total_hours, group.format_cells()[4]) == (12, "12.0 GPU-hours")


def test_equal_settings_are_measured_once_for_several_sweeps(tmp_path: Path, measured_configs: list[RunConfig]) -> None:
    estimates: dict[str, GroupEstimate] = {}
    for seeds in (1, 3):
        (group,) = estimate_groups(plan_runs(tmp_path, "sac+none", seeds=seeds), estimates)
        assert group.runs == 2 * seeds
    assert len(measured_configs) == 1


def test_a_run_that_cannot_be_measured_has_a_reason_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_for_sac(config: RunConfig) -> Any:
        if config.agent_name == "sac":
            raise ModuleNotFoundError("dmc/hopper_hop needs dm_control")
        return make_estimate(config)

    monkeypatch.setattr(sweep_estimate, "estimate_run", fail_for_sac)
    groups = list(estimate_groups(plan_runs(tmp_path, "sac+none", "drqv2+none")))
    assert [group.format_cells()[3] for group in groups] == ["2.00", "unknown"]
    assert groups[1].reason == "dmc/hopper_hop needs dm_control"


def test_a_dry_run_ends_with_a_table_of_real_measurements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("night.toml").write_text(
        'tasks = ["toy/identity_continuous"]\nmethods = ["drqv2+none", "sac+mem"]\nseeds = [1, 2]\n'
        'preset = "minute"\nout = "night"\n'
    )
    assert main(["sweep", "night.toml", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 runs in night: 4 not started"
    assert lines[5].split()[:4] == ["method", "measured", "on", "runs"]
    rows = [line.split() for line in lines[6:8]]
    assert [row[:3] for row in rows] == [
        ["drqv2+none", "toy/identity_continuous", "2"],
        ["sac+mem", "toy/identity_continuous", "2"],
    ]
    for *_, run_hours, total_hours, unit, _, _ in rows:
        assert unit == "core-hours"  # the preset has one thread
        assert float(total_hours) == pytest.approx(2 * float(run_hours), abs=0.06)
    assert lines[8].startswith("to come: 4 runs, ")
    assert not Path("night").exists()


@pytest.mark.usefixtures("measured_configs")
def test_a_search_is_estimated_by_its_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "search.toml").write_text(
        'tasks = ["toy/identity_continuous"]\nmethods = ["drqv2+none"]\nseeds = [1, 2]\npreset = "minute"\n'
        f'out = "{tmp_path}"\n[search]\ntrials = 3\n[search.fields]\n"replay.n_step" = {{ low = 1, high = 3 }}\n'
    )
    assert main(["sweep", str(tmp_path / "search.toml"), "--dry-run"]) == 0
    assert "to come: 6 runs, " in capsys.readouterr().out
