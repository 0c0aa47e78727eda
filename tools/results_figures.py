"""Draw the figures of docs/research from the tables of the studies.

    python -m tools.results_figures

It writes one_core, bonus, privileged, coverage, coverage_films, control, games and deep_sea.png in docs/images, in
seconds.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from experiments import coverage
from experiments.deep_sea import METHODS, SEEDS, read_attempts
from experiments.tables import RESULTS, TableRun, read_runs, read_settings
from manyview.report.curves import Curve, group_curves
from manyview.report.plotting import COLORS, draw_curves
from manyview.report.published_results import PublishedResult, read_published_results

IMAGES = Path(__file__).parents[1] / "docs" / "images"
DEEP_SEA_PANELS = {"DrQ-v2": "", "PPO": "ppo "}
"""Title and prefix of the variants."""
COVERAGE_SEED = 2
"""Seed of the maps and films of coverage."""


def make_curves(runs: Iterable[TableRun], metric: str) -> list[Curve]:
    """Return the curve of each run that has the metric."""
    return [
        Curve(
            task=run.task,
            method=run.method,
            seed=run.seed,
            path=RESULTS / run.rows[0].study,
            settings=read_settings(run),
            x=run.series(metric)[0],
            returns=run.series(metric)[1],
        )
        for run in runs
        if metric in run.metrics
    ]


def draw_returns(study: str, image: str, published: Sequence[PublishedResult] = ()) -> None:
    """Draw the evaluations of a study's runs without a variant, as far as they exist."""
    runs = [run for run in read_runs(study) if not run.variant]
    groups = group_curves(make_curves(runs, "return"))
    draw_curves(IMAGES / image, groups, unit="frames", published=published)


def draw_coverage() -> None:
    """Draw how often one run of each arm has visited the cells of each task's grid, as far as it exists."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    runs = {(run.task, run.variant, run.method): run for run in read_runs(coverage.STUDY) if run.seed == COVERAGE_SEED}
    tasks = [task for task in coverage.SPACES if any(key[0] == task for key in runs)]
    figure = Figure(figsize=(2.3 * len(coverage.ARMS), 2.6 * len(tasks)), layout="constrained")
    panels = figure.subplots(len(tasks), len(coverage.ARMS), sharex="row", sharey="row", squeeze=False)
    for row, task in zip(panels, tasks, strict=True):
        horizontal, vertical = coverage.SPACES[task].axes
        for axes, (title, arm) in zip(row, coverage.ARMS.items(), strict=True):
            run = runs.get((task, *arm))
            if run is None:
                axes.set_axis_off()
                continue
            visits = np.load(coverage.get_map_path(task, *arm, run.seed))["visits"]
            image = axes.imshow(
                np.ma.masked_equal(visits, 0).T,
                origin="lower",
                extent=(*horizontal[1:], *vertical[1:]),
                aspect="auto",
                norm=LogNorm(vmin=1, vmax=100),
            )
            axes.set(title=f"{title}: {run.last('visited_cells'):.0%}", xlabel=horizontal[0])
        row[0].set_ylabel(vertical[0])
    figure.colorbar(image, ax=panels, label="visits")
    figure.savefig(IMAGES / "coverage.png", dpi=100, bbox_inches="tight")


def draw_films() -> None:
    """Draw the last steps of the same runs as their first camera sees them, a row for each, as far as they exist."""
    from matplotlib.figure import Figure

    runs = {(run.task, run.variant, run.method) for run in read_runs(coverage.STUDY) if run.seed == COVERAGE_SEED}
    films = []
    for task, (title, arm) in product(coverage.SPACES, coverage.ARMS.items()):
        if (task, *arm) in runs:
            with np.load(coverage.get_map_path(task, *arm, COVERAGE_SEED)) as file:
                film = file["film"][:-1]  # the newest image is the first one of the next episode
                films.append((f"{task.removeprefix('dmc/')}\n{title}", np.concatenate(film, axis=1)))
    figure = Figure(figsize=(9.6, 0.62 * len(films)), layout="constrained")
    for axes, (title, film) in zip(figure.subplots(len(films), squeeze=False)[:, 0], films, strict=True):
        axes.imshow(film)
        axes.set(xticks=[], yticks=[])
        axes.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8)
    figure.savefig(IMAGES / "coverage_films.png", dpi=100, bbox_inches="tight")


def draw_control() -> None:
    published = read_published_results(RESULTS / "published.json")
    groups = group_curves(make_curves(read_runs("dmc"), "return"))
    draw_curves(IMAGES / "control.png", groups, unit="frames", published=published)


def draw_games() -> None:
    groups = group_curves(make_curves(read_runs("procgen"), "training_return"))
    draw_curves(IMAGES / "games.png", groups, unit="frames", source="episodes")


def draw_deep_sea() -> None:
    """Draw how many of the seeds have solved Deep Sea by each frame."""
    from matplotlib.figure import Figure

    attempts = read_attempts()
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, (title, prefix) in zip(figure.subplots(1, 2, sharey=True), DEEP_SEA_PANELS.items(), strict=True):
        for method, colour in zip((name for name in METHODS if _prefix(name) == prefix), COLORS, strict=False):
            made = [attempts[method, seed] for seed in SEEDS]
            frames = sorted(found.solved_at_frame for found in made if found.solved_at_frame is not None)
            end = max(found.frames for name, found in attempts.items() if _prefix(name[0]) == prefix)
            label = method.removeprefix(prefix)
            axes.step(
                [0, *frames, end], [*range(len(frames) + 1), len(frames)], where="post", color=colour, label=label
            )
        axes.set(title=f"toy/deep_sea, {title}", xlabel="frames", ylim=(-0.2, len(SEEDS)), yticks=np.arange(0, 11, 2))
        axes.grid(visible=True, linewidth=0.4, alpha=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8)
    figure.axes[0].set_ylabel(f"solved seeds of {len(SEEDS)}")
    figure.savefig(IMAGES / "deep_sea.png", dpi=120)


def _prefix(method: str) -> str:
    return "ppo " if method.startswith("ppo ") else ""


def main() -> None:
    published = read_published_results(RESULTS / "published.json")
    draw_returns("base", "one_core.png", published)
    draw_returns("bonus", "bonus.png", published)
    draw_returns("privileged", "privileged.png")  # published policies see images
    draw_coverage()
    draw_films()
    draw_control()
    draw_games()
    draw_deep_sea()


if __name__ == "__main__":
    main()
