"""Files of the paper's experiments: values of their runs, and shared runs."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import manyview
from manyview.envs.registration import find_task, resolve_settings
from manyview.scale.paper import FIGURES, PaperFigure, plan_methods, read_figure, select_runs
from manyview.scale.sweep import PlannedRun
from manyview.training import RunConfig


def plan_method(figure: PaperFigure, method: str) -> list[PlannedRun]:
    """Return the runs of one method of a figure."""
    return replace(figure.sweep, methods=(method,)).plan_runs()


def list_figure_methods() -> list[tuple[str, str]]:
    """Return all pairs of a figure and one of its methods."""
    return [(name, method) for name in FIGURES for method in read_figure(name).sweep.methods]


@pytest.mark.parametrize("size", ["paper", "cpu"])
@pytest.mark.parametrize(("name", "method"), list_figure_methods())
def test_every_run_of_every_figure_resolves_to_a_valid_config(name: str, method: str, size: Any) -> None:
    figure = read_figure(name, size)
    runs = plan_method(figure, method)
    assert len(runs) == len(figure.sweep.tasks) * len(figure.sweep.seeds)
    for run in runs:
        names = ("views", "image_size", "frame_stack", "action_repeat", "render_quality", "render_scale")
        options: Any = {name: getattr(run.config.env, name) for name in names}
        resolve_settings(find_task(run.config.task), options)  # raises for cameras and sizes that the task lacks
        assert run.config.method == method


def test_the_files_are_those_of_the_paper_and_belong_to_the_package() -> None:
    assert list(FIGURES) == ["figure_3", "figure_4", "figure_5", "figure_6", "table_2"]
    package = Path(str(manyview.__file__)).parent
    assert all(file.is_relative_to(package) for file in FIGURES.values())  # so that wheels contain them


@pytest.mark.parametrize(
    ("name", "tasks", "methods", "seeds"),
    [
        ("figure_3", 6, 4, 5),
        ("figure_4", 6, 4, 5),
        ("figure_5", 6, 3, 5),
        ("figure_6", 6, 5, 10),
        ("table_2", 9, 5, 10),
    ],
)
def test_tasks_methods_and_seeds_are_as_many_as_in_the_paper(name: str, tasks: int, methods: int, seeds: int) -> None:
    sweep = read_figure(name).sweep
    assert (len(sweep.tasks), len(sweep.methods), len(sweep.seeds)) == (tasks, methods, seeds)
    assert all(find_task(task).in_paper for task in sweep.tasks)


def describe(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a run that the paper states."""
    common = {"views": config.env.views, "frames": config.schedule.frames, "lr": config.agent.lr}
    if config.is_on_policy:
        return {**common, "envs": config.rollout.envs, "steps": config.rollout.steps, "batch": config.agent.batch_size}
    return {
        **common,
        "size": config.env.image_size,
        "stack": config.env.frame_stack,
        "repeat": config.env.action_repeat,
        "replay": config.replay.capacity,
        "batch": config.replay.batch_size,
        "crop": config.replay.augmentation_pixels if config.replay.augmentation == "crop" else 0,
    }


DRQV2 = {"frames": 500_000, "lr": 1e-4, "size": 84, "stack": 3, "repeat": 2, "replay": 500_000, "batch": 256, "crop": 0}
SAC = {"frames": 500_000, "lr": 1e-3, "size": 84, "stack": 4, "repeat": 4, "replay": 100_000, "batch": 256, "crop": 0}
CURL = SAC | {"views": ("0",), "lr": 1e-4, "size": 100, "stack": 3, "batch": 512, "crop": 16}
DRIBO = SAC | {"views": ("0",), "lr": 5e-5, "size": 100, "stack": 1, "replay": 1_000_000, "crop": 16}
PPO = {"views": None, "frames": 25_000_000, "lr": 5e-4, "envs": 64, "steps": 256, "batch": 256}


@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("figure_3", "drqv2+mem", DRQV2 | {"views": None}),
        ("figure_3", "drqv2+none", DRQV2 | {"views": ("0",)}),
        ("figure_3", "sac+mem", SAC | {"views": None}),
        ("figure_3", "sac+none", SAC | {"views": ("0",)}),
        ("figure_4", "drqv2+re3", DRQV2 | {"views": ("0",)}),
        ("figure_4", "sac+curl", CURL),
        ("figure_4", "sac+dribo", DRIBO),
        ("figure_5", "drqv2+re3", DRQV2 | {"views": ("0",)}),
        ("figure_6", "ppo+mem", PPO),
        ("table_2", "ppo+ride", PPO),
    ],
)
def test_runs_have_the_values_of_the_paper(name: str, method: str, expected: dict[str, Any]) -> None:
    for run in plan_method(read_figure(name), method):
        config = run.config
        has_top_view = (
            config.task == "dmc/quadruped_run" and method not in ("sac+curl", "sac+dribo") and expected["views"]
        )
        assert describe(config) == expected | ({"views": ("2",)} if has_top_view else {})


def test_baselines_of_ppo_have_the_encoder_of_ppo() -> None:
    figure = read_figure("table_2")
    sizes = {method: plan_method(figure, method)[0].config.representation.latent_dim for method in figure.methods}
    assert sizes == dict.fromkeys(figure.methods, 128)


def test_re3_has_the_form_and_the_decay_of_the_appendix() -> None:
    for name, method, expected in (
        ("figure_5", "drqv2+re3", (3, 0.05, 1e-5, False, False)),
        ("table_2", "ppo+re3", (5, 0.1, 1e-5, True, True)),
    ):
        bonus = plan_method(read_figure(name), method)[0].config.bonus
        assert (bonus.k, bonus.beta0, bonus.beta_decay, bonus.log, bonus.average) == expected


@pytest.mark.parametrize("size", ["paper", "cpu"])
def test_figures_share_runs_of_equal_settings_and_no_directory_has_two(size: Any) -> None:
    configs: dict[Path, RunConfig] = {}
    num_shared = 0
    for name in FIGURES:
        planned, _ = plan_methods(read_figure(name, size).sweep)
        for run in planned:
            num_shared += run.run_dir in configs
            assert configs.setdefault(run.run_dir, run.config) == run.config
    assert num_shared == 6 * 5 + 6 * 5 * 10  # MEM of figures 3 and 4; all of figure 6 in table 2


def test_the_size_changes_presets_and_keeps_tasks_methods_seeds_and_cameras() -> None:
    large, small = read_figure("figure_4"), read_figure("figure_4", "cpu")
    for name in ("tasks", "methods", "seeds"):
        assert getattr(large.sweep, name) == getattr(small.sweep, name)
    config = plan_method(small, "sac+curl")[0].config
    assert (config.preset, config.env.views, config.env.image_size, config.replay.batch_size) == (
        "cpu",
        ("0",),
        32,
        256,
    )
    assert config.replay.augmentation == "shift"
    assert (small.sweep.out, small.sweep.gpus) == ("runs/paper_cpu", 0)


def test_a_selection_keeps_the_conditions_of_the_file() -> None:
    sweep = select_runs(read_figure("figure_3").sweep, ["dmc/quadruped_run"], ["drqv2+none"], [2])
    (run,) = sweep.plan_runs()
    assert (run.config.env.views, run.config.seed) == (("2",), 2)
    with pytest.raises(ValueError, match=r"unknown task 'dmc/quadruped_walk'.*did you mean dmc/quadruped_run\?"):
        select_runs(sweep, ["dmc/quadruped_walk"], None, None)
    with pytest.raises(ValueError, match="unknown seed 9: expected one of 2"):
        select_runs(sweep, None, None, [9])


def test_the_published_table_agrees_with_the_text_of_the_paper() -> None:
    figure = read_figure("table_2")
    table = {
        task: {m: float(cell.split("±")[0]) for m, cell in zip(figure.methods, cells, strict=True)}
        for task, cells in figure.published.items()
    }
    assert list(table) == list(figure.sweep.tasks)
    wins = {method: sum(row[method] > row["ppo+none"] for row in table.values()) for method in figure.methods}
    assert wins == {"ppo+none": 0, "ppo+ucb_drac": 7, "ppo+re3": 6, "ppo+ride": 7, "ppo+mem": 7}
    best = {task.removeprefix("procgen/"): max(row, key=row.__getitem__) for task, row in table.items()}
    mem = ("bigfish", "fruitbot", "bossfight", "coinrun", "jumper")
    others = {"starpilot": "ppo+ride", "ninja": "ppo+ucb_drac", "dodgeball": "ppo+none", "miner": "ppo+ucb_drac"}
    assert best == {**dict.fromkeys(mem, "ppo+mem"), **others}
    assert all(re.fullmatch(r"\d+\.\d±\d\.\d", cell) for cells in figure.published.values() for cell in cells)
