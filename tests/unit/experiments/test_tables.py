"""Tables of studies: what a finished run adds, and what is rejected."""

import gzip
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import tables
from experiments.tables import (
    COLUMNS,
    TABLE_FILE,
    Row,
    append_rows,
    append_run,
    format_mean,
    format_table,
    read_runs,
    read_settings,
    read_table,
)
from manyview.config.method import parse_method
from manyview.config.presets import PARTS
from manyview.report.curves import read_curve
from manyview.report.runs import METRICS_FILE
from tests.support.run_dirs import format_record, write_run_dir

MANIFEST = {"views": ["side", "back"], "commit": "abc123"}


def finished(path: Path, seed: int = 1, method: str = "drqv2+mem", *extra: str, **settings: Any) -> Path:
    for kind, name in zip(PARTS, parse_method(method), strict=True):
        settings[kind] = {"name": name, **settings.get(kind, {})}
    run = write_run_dir(path, [0.0, 0.1, 1 / 3], seed=seed, method=method, manifest=MANIFEST, **settings)
    episodes = [format_record("episode", 20 * n, **{"return": float(n % 2), "length": 5}) for n in range(1, 101)]
    with (run / METRICS_FILE).open("a") as file:
        file.writelines([*episodes, *extra])
    return run


def test_a_run_adds_its_evaluations_and_is_read_back_exactly(tmp_path: Path) -> None:
    rows = append_run("study", finished(tmp_path / "run"), "default", results=tmp_path)
    assert read_table("study", results=tmp_path) == rows
    found = [(row.frames, row.wall_time_s, row.value) for row in rows if row.metric == "return"]
    assert found == [(0.0, 0.0, 0.0), (1000.0, 10.0, 0.1), (2000.0, 20.0, 1 / 3)]
    assert {(row.agent, row.representation, row.bonus, row.views, row.commit) for row in rows} == {
        ("drqv2", "mem", "mem", "side+back", "abc123")
    }


def test_training_episodes_are_those_of_the_plotted_curve(tmp_path: Path) -> None:
    run_dir = finished(tmp_path / "run")
    append_run("study", run_dir, "default", results=tmp_path)
    (run,) = read_runs("study", results=tmp_path)
    curve = read_curve(run_dir, "frames", "episodes")
    assert np.array_equal(run.series("training_return"), (curve.x, curve.returns))
    assert run.series("training_episodes")[1].sum() == 100
    assert run.series("rewarded_episodes")[1].sum() == 50


def test_what_a_resume_played_again_counts_once(tmp_path: Path) -> None:
    again = [format_record("resume", 1000), format_record("evaluation", 2000, **{"return": 7.0})]
    run_dir = finished(tmp_path / "run", 1, "drqv2+mem", *again)
    append_run("study", run_dir, "default", results=tmp_path)
    (run,) = read_runs("study", results=tmp_path)
    frames, returns = run.series("return")
    assert (frames.tolist(), returns.tolist()) == ([0, 1000, 2000], [0.0, 0.1, 7.0])
    assert run.series("training_episodes")[1].sum() == 50


def test_named_training_metrics_and_final_values_are_kept(tmp_path: Path) -> None:
    line = format_record("train", 30, loss=2.0, other=3.0, health="healthy: all", **{"std/side": 0.5})
    run_dir = finished(tmp_path / "run", 1, "drqv2+mem", line)
    metrics = ("loss", "std", "healthy")
    append_run("study", run_dir, "default", train_metrics=metrics, final={"final_return": 4.0}, results=tmp_path)
    (run,) = read_runs("study", results=tmp_path)
    assert {name: run.last(name) for name in ("loss", "std/side", "healthy", "final_return")} == {
        "loss": 2.0,
        "std/side": 0.5,
        "healthy": 1.0,
        "final_return": 4.0,
    }
    assert "other" not in run.metrics


def test_a_run_is_added_once(tmp_path: Path) -> None:
    run_dir = finished(tmp_path / "run")
    append_run("study", run_dir, "default", results=tmp_path)
    before = (tmp_path / "study" / TABLE_FILE).read_bytes()
    with pytest.raises(ValueError, match=r"has this run already: variant default, .*, drqv2/mem/mem, seed 1"):
        append_run("study", run_dir, "default", results=tmp_path)
    assert (tmp_path / "study" / TABLE_FILE).read_bytes() == before


def test_a_variant_has_one_set_of_settings(tmp_path: Path) -> None:
    append_run("study", finished(tmp_path / "a", replay={"batch_size": 8}), "default", results=tmp_path)
    with pytest.raises(ValueError, match=r"expected replay.batch_size=8, got 9. Use another variant"):
        append_run("study", finished(tmp_path / "b", 2, replay={"batch_size": 9}), "default", results=tmp_path)
    append_run("study", finished(tmp_path / "c", 2, replay={"batch_size": 9}), "larger", results=tmp_path)
    assert [run.seed for run in read_runs("study", results=tmp_path)] == [1, 2]


def test_settings_are_those_that_the_method_uses(tmp_path: Path) -> None:
    groups: dict[str, Any] = {"agent": {"lr": 1.0}, "rollout": {"envs": 8}, "logging": {"every_steps": 1}}
    with_mem: dict[str, Any] = {"representation": {"latent_dim": 4}, "bonus": {"k": 3}}
    append_run("study", finished(tmp_path / "a", 1, "drqv2+mem", **groups, **with_mem), "default", results=tmp_path)
    with_re3: dict[str, Any] = {"representation": {"latent_dim": 8}, "bonus": {"k": 5}}
    append_run("study", finished(tmp_path / "b", 1, "drqv2+re3", **groups, **with_re3), "default", results=tmp_path)
    for run in read_runs("study", results=tmp_path):
        assert read_settings(run, results=tmp_path) == {
            "agent.drqv2.lr": 1.0,
            "representation.mem.latent_dim": 4,
            "representation.pixel.latent_dim": 8,
            "bonus.mem.k": 3,
            "bonus.re3.k": 5,
        }


def test_a_method_may_have_settings_of_its_own(tmp_path: Path) -> None:
    for seed in (1, 2):
        mem = finished(tmp_path / f"mem{seed}", seed, "drqv2+mem", replay={"batch_size": 8, "n_step": 3})
        append_run("study", mem, "", results=tmp_path)
        none = finished(tmp_path / f"none{seed}", seed, "drqv2+none", replay={"batch_size": 9, "n_step": 3})
        append_run("study", none, "", results=tmp_path)
    sizes = [read_settings(run, results=tmp_path)["replay.batch_size"] for run in read_runs("study", results=tmp_path)]
    assert sizes == [8, 9, 8, 9]
    other = finished(tmp_path / "other", 3, "drqv2+none", replay={"batch_size": 8})
    with pytest.raises(ValueError, match=r"expected replay.batch_size=9, got 8"):
        append_run("study", other, "", results=tmp_path)


def test_runs_that_finish_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    paths = [finished(tmp_path / f"seed{seed}", seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: append_run("study", path, "default", results=tmp_path), paths))
    assert sorted(run.seed for run in read_runs("study", results=tmp_path)) == list(range(8))


def test_the_same_rows_make_the_same_bytes(tmp_path: Path) -> None:
    row = Row("study", "v", "toy/a", "ppo", "pixel", "none", "screen", 1, 2.5, None, "return", 0.1, "")
    for results in (tmp_path / "a", tmp_path / "b"):
        append_rows("study", [row], {"v": {"x": 1}}, results=results)
    first, second = ((results / "study" / TABLE_FILE).read_bytes() for results in (tmp_path / "a", tmp_path / "b"))
    assert first == second
    assert gzip.decompress(first).decode().splitlines() == [
        ",".join(COLUMNS),
        "study,v,toy/a,ppo,pixel,none,screen,1,2.5,,return,0.1,",
    ]


def test_a_table_with_other_columns_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / TABLE_FILE).write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with pytest.raises(ValueError, match=r"has other columns: expected study, .*, got a, b"):
        read_table("study", results=tmp_path)


@pytest.mark.parametrize("method", ["ppo+none", "drqv2+curl+re3", "sac+pixel+mem", "sac+mem+none"])
def test_the_method_of_a_run_is_read_back(tmp_path: Path, method: str) -> None:
    append_run("study", finished(tmp_path / "run", 1, method), "default", results=tmp_path)
    (run,) = read_runs("study", results=tmp_path)
    assert run.method == method


def test_means_have_an_interval_from_three_values_on() -> None:
    assert format_mean([1.0, 2.0]) == "2"
    assert format_mean([1.0, 2.0, 3.0], digits=1) == "2.0 (1.0 to 3.0)"
    assert format_mean([-0.01, 0.0], digits=1) == "0.0"


def test_the_command_prints_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2, 3):
        append_run("study", finished(tmp_path / f"seed{seed}", seed), "default", results=tmp_path)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    monkeypatch.setattr(tables.read_runs, "__kwdefaults__", {"results": tmp_path})
    monkeypatch.setattr(sys, "argv", ["tables", "study"])
    tables.main()
    last = "| `toy/identity_continuous` | default | `drqv2+mem` | 1, 2, 3 | 2,000 | 0.3333, 0.3333, 0.3333 |"
    assert capsys.readouterr().out.splitlines()[-1].startswith(last)


def test_every_kept_study_can_be_read() -> None:
    studies = [path.parent.name for path in tables.RESULTS.glob(f"*/{TABLE_FILE}")]
    assert len(studies) >= 10
    for study in studies:
        assert {row.study for row in read_table(study)} == {study}
    size = sum(path.stat().st_size for path in tables.RESULTS.rglob("*"))
    assert size < 5_000_000


def test_a_markdown_table_has_a_line_below_its_head() -> None:
    assert format_table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
