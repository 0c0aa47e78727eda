"""Curves of runs, their groups and the mean of a group."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyview.config.overrides import nest_overrides
from manyview.report.curves import CurveGroup, compute_mean_curve, group_curves, read_curve
from manyview.report.runs import METRICS_FILE, BrokenRunError
from tests.support.run_dirs import format_record, write_run_dir


def read_only_group(*paths: Path) -> CurveGroup:
    """Return the only group of the curves of some runs."""
    (group,) = group_curves(read_curve(path, "frames") for path in paths)
    return group


@pytest.mark.parametrize(("unit", "factor"), [("frames", 1), ("steps", 1 / 4), ("updates", 1 / 8), ("seconds", 0.01)])
def test_a_curve_is_the_evaluations_over_any_unit(unit: str, factor: float, tmp_path: Path) -> None:
    curve = read_curve(write_run_dir(tmp_path / "run", [1.0, 2.0, 4.0]), unit)  # type: ignore[arg-type]
    assert curve.x.tolist() == [0, 1000 * factor, 2000 * factor]
    assert curve.returns.tolist() == [1.0, 2.0, 4.0]


def test_the_later_of_two_evaluations_at_a_frame_counts(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", [1.0, 2.0, 9.0], end=None)
    with (path / METRICS_FILE).open("a") as file:
        for frames, value in ((2000, 3.0), (3000, 4.0)):
            file.write(format_record("evaluation", frames, **{"return": value}))
    assert read_curve(path, "frames").returns.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_return_that_is_not_a_number_is_left_out(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", [1.0], end=None)
    with (path / METRICS_FILE).open("a") as file:
        file.write(format_record("evaluation", 1000, **{"return": None}))
    assert read_curve(path, "frames").returns.tolist() == [1.0]


def test_a_run_without_a_metrics_file_is_broken(tmp_path: Path) -> None:
    (write_run_dir(tmp_path / "run") / METRICS_FILE).unlink()
    with pytest.raises(BrokenRunError, match=r"run: metrics\.jsonl does not exist"):
        read_curve(tmp_path / "run", "frames")


def test_runs_are_grouped_by_task_and_method(tmp_path: Path) -> None:
    runs = [("dmc/a", "drqv2+mem", 2), ("dmc/a", "drqv2+none", 1), ("dmc/b", "drqv2+mem", 1), ("dmc/a", "drqv2+mem", 1)]
    for number, (task, method, seed) in enumerate(runs):
        write_run_dir(tmp_path / str(number), [1.0], task=task, method=method, seed=seed)
    groups = group_curves(read_curve(tmp_path / str(number), "frames") for number in range(len(runs)))
    assert [(group.task, group.label, group.seed_count_text) for group in groups] == [
        ("dmc/a", "drqv2+mem", "2 seeds"),
        ("dmc/a", "drqv2+none", "1 seed"),
        ("dmc/b", "drqv2+mem", "1 seed"),
    ]


def test_other_settings_make_another_group_that_names_them(tmp_path: Path) -> None:
    for seed, entropy in ((1, "marginal"), (2, "marginal"), (3, "joint")):
        write_run_dir(tmp_path / str(seed), [1.0], seed=seed, bonus={"beta0": 0.1, "k": 3, "entropy": entropy})
    groups = group_curves(read_curve(tmp_path / str(seed), "frames") for seed in (1, 2, 3))
    assert [(group.label, group.seed_count_text) for group in groups] == [
        ("drqv2+mem, bonus.entropy joint", "1 seed"),
        ("drqv2+mem, bonus.entropy marginal", "2 seeds"),
    ]


def test_labels_name_paths_without_their_folders_and_differ(tmp_path: Path) -> None:
    for seed, path in ((1, "/home/me/a/shown"), (2, "/home/me/b/shown"), (3, "/home/me/a/shown")):
        write_run_dir(tmp_path / str(seed), [1.0], seed=seed, replay={"demonstrations": path})
    groups = group_curves(read_curve(tmp_path / str(seed), "frames") for seed in (1, 2, 3))
    assert [(group.label, group.seed_count_text) for group in groups] == [
        ("drqv2+mem, replay.demonstrations shown", "2 seeds"),
        ("drqv2+mem, replay.demonstrations shown (2)", "1 seed"),
    ]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("env.action_repeat", (2, 4)),
        ("schedule.seed_frames", (100, 200)),
        ("replay.n_step", (1, 3)),
        ("bonus.beta0", (0.1, 0.2)),
        ("agent.lr", (0.1, 0.2)),
        ("representation.latent_dim", (16, 32)),
        ("bonus.encoder.lr", (0.1, 0.2)),
        ("compute.precision", ("float32", "bfloat16")),
        ("evaluation.episodes", (5, 10)),
        ("scale.learners", (1, 2)),
    ],
)
def test_settings_that_can_change_a_curve_make_another_group(name: str, values: Any, tmp_path: Path) -> None:
    paths = [
        write_run_dir(tmp_path / str(seed), [1.0], seed=seed, **nest_overrides([(name, value)]))
        for seed, value in enumerate(values)
    ]
    groups = group_curves(read_curve(path, "frames") for path in paths)
    assert [group.label for group in groups] == [f"drqv2+mem, {name} {value}" for value in sorted(values, key=str)]


def test_evaluation_settings_make_no_group_of_training_episodes(tmp_path: Path) -> None:
    paths = [
        write_run_dir(tmp_path / str(seed), [1.0], seed=seed, evaluation={"episodes": 5 * seed}) for seed in (0, 1)
    ]
    assert len(group_curves(read_curve(path, "frames", "episodes") for path in paths)) == 1
    assert len(group_curves(read_curve(path, "frames") for path in paths)) == 2


def test_runs_of_ppo_are_grouped_by_rollout_and_not_by_replay_settings(tmp_path: Path) -> None:
    for seed, steps in ((1, 64), (2, 64), (3, 256)):
        write_run_dir(
            tmp_path / str(seed), [1.0], seed=seed, method="ppo+none", rollout={"steps": steps}, replay={"n_step": seed}
        )
    groups = group_curves(read_curve(tmp_path / str(seed), "frames") for seed in (1, 2, 3))
    assert [(group.label, group.seed_count_text) for group in groups] == [
        ("ppo+none, rollout.steps 256", "1 seed"),
        ("ppo+none, rollout.steps 64", "2 seeds"),
    ]


def test_the_curve_on_test_levels_has_their_returns(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", [1.0], end=None)  # the first evaluation has no test levels
    with (path / METRICS_FILE).open("a") as file:
        file.write(format_record("evaluation", 1000, **{"return": 7.0, "test_return": 3.0, "train_return": 5.0}))
    curve = read_curve(path, "frames", "test_levels")
    assert (curve.x.tolist(), curve.returns.tolist()) == ([1000.0], [3.0])
    assert read_curve(path, "frames").returns.tolist() == [1.0, 7.0]


def test_a_curve_of_episodes_has_the_mean_of_each_fiftieth_of_the_run(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", [9.0], end=None)
    episodes = [(1, 1.0), (100, 3.0), (101, 7.0), (5000, 5.0)]  # the first two are within 5,000 / 50 frames
    with (path / METRICS_FILE).open("a") as file:
        file.writelines(format_record("episode", frames, **{"return": value}) for frames, value in episodes)
    curve = read_curve(path, "frames", "episodes")
    assert (curve.x.tolist(), curve.returns.tolist()) == ([100.0, 200.0, 5000.0], [2.0, 7.0, 5.0])
    assert read_curve(path, "seconds", "episodes").x.tolist() == [1.0, 2.0, 50.0]


def test_episodes_repeated_after_a_resume_count_once(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", [9.0], end=None)
    records = [("episode", 100, 1.0), ("episode", 150, 70.0), ("resume", 100, None), ("episode", 160, 3.0)]
    with (path / METRICS_FILE).open("a") as file:
        file.writelines(
            format_record(kind, frames, **({"return": value} if value else {})) for kind, frames, value in records
        )
        file.write(format_record("end", 200))
    curve = read_curve(path, "frames", "episodes")
    assert (curve.x.tolist(), curve.returns.tolist()) == ([100.0, 160.0], [1.0, 3.0])


def test_a_run_without_episodes_has_an_empty_curve_of_them(tmp_path: Path) -> None:
    assert len(read_curve(write_run_dir(tmp_path / "run"), "frames", "episodes").x) == 0


def test_settings_without_effect_on_a_method_make_no_group(tmp_path: Path) -> None:
    first = write_run_dir(
        tmp_path / "a",
        [1.0],
        method="drqv2+none",
        bonus={"name": "none"},
        replay={"directory": None},
        rollout={"envs": 8},
        logging={"every_steps": 1},
    )
    second = write_run_dir(
        tmp_path / "b",
        [1.0],
        seed=2,
        method="drqv2+none",
        schedule={"frames": 5},
        bonus={"name": "none"},
        replay={"directory": "/replay"},
        rollout={"envs": 16},
        logging={"every_steps": 2},
        representation={"of_a_later_version": 1},
    )
    assert read_only_group(first, second).seed_count_text == "2 seeds"


def test_the_mean_ends_where_the_shortest_curve_ends(tmp_path: Path) -> None:
    rows = [[0.0, 3.0, 6.0, 9.0], [0.0, 0.0, 0.0], [3.0, 3.0, 3.0, 3.0]]
    mean = compute_mean_curve(
        read_only_group(*(write_run_dir(tmp_path / str(seed), row, seed=seed) for seed, row in enumerate(rows)))
    )
    assert mean is not None
    assert mean.x.tolist() == [0, 1000, 2000]
    assert mean.returns.tolist() == [1.0, 2.0, 3.0]
    assert np.array_equal(mean.interval, [[0.0, 0.0, 0.0], [3.0, 3.0, 6.0]])
    assert np.allclose(mean.std, [2**0.5, 2**0.5, 6**0.5])  # of 0, 0, 3; of 3, 0, 3; of 6, 0, 3


def test_seeds_evaluated_at_other_frames_are_interpolated(tmp_path: Path) -> None:
    paths = [
        write_run_dir(tmp_path / str(seed), [0.0, 10.0, 20.0], seed=seed, every_frames=every_frames)
        for seed, every_frames in ((1, 1000), (2, 1000), (3, 500))
    ]
    mean = compute_mean_curve(read_only_group(*paths))
    assert mean is not None
    assert mean.x.tolist() == [0, 500, 1000]
    assert np.allclose(mean.returns, [0.0, (5 + 5 + 10) / 3, (10 + 10 + 20) / 3])


def test_two_seeds_have_no_mean(tmp_path: Path) -> None:
    assert (
        compute_mean_curve(
            read_only_group(*(write_run_dir(tmp_path / str(seed), [1.0, 2.0], seed=seed) for seed in (1, 2)))
        )
        is None
    )


def test_duplicate_seeds_are_listed(tmp_path: Path) -> None:
    paths = [write_run_dir(tmp_path / str(number), [1.0], seed=seed) for number, seed in enumerate((1, 2, 1))]
    assert read_only_group(*paths).duplicate_seeds == [1]
