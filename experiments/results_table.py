"""Print the tables of docs/research from the tables of the studies and the published results beside them.

python -m experiments.results_table base              # SAC on one core
python -m experiments.results_table state             # SAC on the state
python -m experiments.results_table bonus             # SAC from images, with a bonus of the cameras
python -m experiments.results_table privileged        # SAC on the state, with a bonus of the cameras
python -m experiments.results_table dmc               # earlier, on control tasks; diagnostics: of its runs with MEM
python -m experiments.results_table dmc_ablation      # one change of MEM at a time, on Ball in Cup
python -m experiments.results_table procgen           # games; procgen_training: the last fifth of their training
python -m experiments.results_table dmc_trials        # trials before the comparison; dmc_later_trials: after
python -m experiments.results_table procgen_trials    # trials on games
"""

import argparse
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from experiments import privileged
from experiments.bonus.comparisons import SEEDS
from experiments.real_tasks import ABLATED, ABLATION, ABLATION_FRAMES, ABLATION_SEEDS, CELLS, DIAGNOSTICS
from experiments.tables import RESULTS, TableRun, format_mean, format_table, name_arm, read_runs, read_settings
from manyview.report.published_results import read_published_results

Lines = Iterator[tuple[str, ...]]
HEAD = ("task", "method", "each seed", "mean at the end", "mean over the second half", "rewarded episodes, each fifth")
PARTS = 5
CONTROL_TASKS = tuple(dict.fromkeys(task for task, _ in CELLS["dmc"]))


def group_by_cell(study: str) -> dict[tuple[str, str], list[TableRun]]:
    """Return the runs of each task and method, by seed."""
    cells: dict[tuple[str, str], list[TableRun]] = {}
    for run in sorted(read_runs(study), key=lambda run: run.seed):
        cells.setdefault((run.task, run.method), []).append(run)
    return cells


def list_control() -> Lines:
    """Yield a line for each task and method, in the order of the comparison, published methods last."""
    ours = group_by_cell("dmc")
    for task in CONTROL_TASKS:
        cells = [(name, ours[task, name]) for owner, name in CELLS["dmc"] if owner == task and (task, name) in ours]
        for method, seeds in cells:
            ends = [run.last("return") for run in seeds]
            halves = [_average_last(1 / 2, run, "return") for run in seeds]
            each = ", ".join(f"{end:.0f}" for end in ends)
            rewarded = _format_rewarded(seeds, frames=seeds[0].series("return")[0][-1])
            yield f"`{task}`", f"`{method}`", each, format_mean(ends), format_mean(halves), rewarded
        if cells:
            yield from _list_published(task, frames=cells[0][1][0].series("return")[0][-1])


SCORES_HEAD = (
    *("task", "method", "final return, each seed", "mean", "mean of all evaluations"),
    *("rewarded episodes, each fifth", "minutes"),
)


def list_scores(study: str, variants: Collection[str] = ("",), *, with_published: bool = True) -> Lines:
    """Yield a line for each task, method and variant of a study's counted seeds, published methods last."""
    cells: dict[str, dict[str, list[TableRun]]] = {}
    for run in sorted(read_runs(study), key=lambda run: run.seed):
        if run.variant in variants and run.seed <= SEEDS:
            cells.setdefault(run.task, {}).setdefault(name_arm(run.method, run.variant), []).append(run)
    for task, arms in cells.items():
        for arm, seeds in arms.items():
            frames = seeds[0].series("return")[0][-1]
            scores = [run.score for run in seeds]
            averages = [_average_last(1, run, "return") for run in seeds]
            yield (
                f"`{task}`",
                arm,
                ", ".join(f"{score:.0f}" for score in scores),
                format_mean(scores),
                format_mean(averages),
                _format_rewarded(seeds, frames=frames),
                f"{np.median([run.minutes for run in seeds]):.0f}",
            )
        if with_published:
            for line in _list_published(task, frames=frames):
                yield *line, ""


def _list_published(task: str, *, frames: float) -> Lines:
    for row in read_published_results(RESULTS / "published.json"):
        if (row.task, row.frames) == (task, frames):
            each = ", ".join(f"{value:.0f}" for value in row.returns)
            yield f"`{task}`", f"{row.method}, published", each, format_mean(row.returns), "", ""


def _average_last(share: float, run: TableRun, metric: str) -> float:
    frames, values = run.series(metric)
    return float(values[frames > (1 - share) * frames[-1]].mean())


def _format_rewarded(seeds: Sequence[TableRun], *, frames: float) -> str:
    """Return the share of training episodes with any reward in each fifth of so many frames, mean over seeds."""
    shares = []
    for run in seeds:
        ends, episodes = run.series("training_episodes")
        _, rewarded = run.series("rewarded_episodes")
        # Each point holds the episodes up to its frame.
        part = np.ceil(PARTS * ends / frames - 1e-9).astype(int) - 1
        shares.append([rewarded[part == index].sum() / episodes[part == index].sum() for index in range(PARTS)])
    return ", ".join(f"{share:.0%}" for share in np.mean(shares, axis=0))


DIAGNOSTICS_HEAD = ("metric", *(f"`{task}`" for task in CONTROL_TASKS))


def list_diagnostics() -> Lines:
    """Yield the 5 % and 95 % quantiles of each metric in all runs with MEM, then how many records were healthy."""
    runs = {task: seeds for (task, method), seeds in group_by_cell("dmc").items() if method == "drqv2+mem"}
    for metric in DIAGNOSTICS:
        yield f"`{metric}`", *(_format_middle(runs[task], metric) for task in CONTROL_TASKS)
    healthy = {task: np.concatenate([run.series("healthy")[1] for run in runs[task]]) for task in CONTROL_TASKS}
    yield "healthy records", *(f"{healthy[task].sum():.0f} of {len(healthy[task])}" for task in CONTROL_TASKS)


def _format_middle(runs: Iterable[TableRun], metric: str, *, frames: float = np.inf) -> str:
    values = [
        value
        for run in runs
        for name, (at, values) in run.metrics.items()
        if name.split("/")[0] == metric
        for value in values[at <= frames]
    ]
    if not values:
        return ""
    low, high = (float(f"{value:.3g}") for value in np.quantile(values, (0.05, 0.95)))
    return f"{low:,g} to {high:,g}"


ABLATION_HEAD = (
    *("change", "mean of evaluations, each seed", "mean", "rewarded episodes, each fifth"),
    *("unmoved", "`std`"),
)

UNMOVED = 0.1
"""`action_spread` of a policy whose action hardly depends on the observation."""


def list_ablation() -> Lines:
    """Yield the first frames of the runs of the comparison, then each change."""
    task, method = ABLATED
    for changed, name in (("nothing", method), ("`--method drqv2+none`", "drqv2+none")):
        yield _describe_change(changed, [run for run in group_by_cell("dmc")[task, name] if run.seed in ABLATION_SEEDS])
    runs = read_runs("dmc_ablation")
    for variant, settings in ABLATION.items():
        if seeds := [run for run in runs if run.variant == variant]:
            yield _describe_change(" ".join(f"`{setting}`" for setting in settings), seeds)


def _describe_change(changed: str, seeds: Sequence[TableRun]) -> tuple[str, ...]:
    returns = [run.series("return") for run in seeds]
    means = [float(values[(at > 0) & (at <= ABLATION_FRAMES)].mean()) for at, values in returns]
    spreads = [run.series("action_spread") for run in seeds]
    early = np.concatenate([values[at <= ABLATION_FRAMES] for at, values in spreads])
    unmoved = f"{(early < UNMOVED).sum()} of {len(early)}"
    each, rewarded = ", ".join(f"{mean:.0f}" for mean in means), _format_rewarded(seeds, frames=ABLATION_FRAMES)
    return (
        changed,
        each,
        f"{np.mean(means):.0f}",
        rewarded,
        unmoved,
        _format_middle(seeds, "std", frames=ABLATION_FRAMES),
    )


GAMES_HEAD = ("task", "method", "each seed", "training levels", "ratio to random", "test levels", "gap")


def list_games() -> Lines:
    """Yield a line for each game and method: the returns of the last policy of each run; a random policy last."""
    ours = group_by_cell("procgen")
    cells = [cell for cell in CELLS["procgen"] if cell in ours]
    for task in dict.fromkeys(task for task, _ in cells):
        (by_chance,) = ours[task, "random+none"]
        random = by_chance.last("final_return")
        for method in (name for owner, name in cells if owner == task):
            seen, unseen = (
                [run.last(name) for run in ours[task, method]] for name in ("final_return", "final_test_return")
            )
            gaps = [train - test for train, test in zip(seen, unseen, strict=True)]
            each = ", ".join(f"{value:.1f}" for value in seen)
            means = [format_mean(values, digits=1) for values in (seen, unseen, gaps)]
            yield f"`{task}`", f"`{method}`", each, means[0], f"{np.mean(seen) / random:.1f}", *means[1:]
        rewarded = by_chance.last("rewarded_episodes") / by_chance.last("training_episodes")
        yield f"`{task}`", "random policy", "", f"{random:.1f}, rewarded in {rewarded:.0%} of episodes", "1.0", "", ""


LAST = 1 / 5
TRAINED_GAMES_HEAD = ("task", "method", "changed", "return of training episodes, each seed", "`clip_fraction`")


def list_trained_games() -> Lines:
    """Yield the last fifth of training on games, which has many more episodes than an evaluation.

    Runs in which one setting was changed follow.
    """
    ours = group_by_cell("procgen")
    for task, method in (cell for cell in CELLS["procgen"] if cell in ours):
        yield f"`{task}`", f"`{method}`", "nothing", *_format_last_fifth(ours[task, method])
    changed: dict[tuple[str, str, str], list[TableRun]] = {}
    for run in read_runs("procgen_changed"):
        changed.setdefault((run.task, run.method, run.variant), []).append(run)
    for (task, method, setting), runs in changed.items():
        yield f"`{task}`", f"`{method}`", f"`{setting}`", *_format_last_fifth(runs)


def _format_last_fifth(runs: Iterable[TableRun]) -> tuple[str, str]:
    """Return the mean returns of each run and the mean fraction of clipped ratios."""
    returns, clipped = [], []
    for run in runs:
        returns.append(f"{_average_last(LAST, run, 'training_return'):.2f}")
        frames, fractions = run.series("clip_fraction")
        clipped.append(fractions[frames > (1 - LAST) * run.series("training_return")[0][-1]].mean())
    return ", ".join(returns), f"{np.mean(clipped):.0%}"


TRIALS_HEAD = (
    *("task", "method", "batch", "lr", "noise, frames", "also", "seed"),
    *("return after 10,000, 20,000 ... frames", "rewarded episodes"),
)
ALSO = {
    "drqv2.shift_pixels": (4, "shift {}"),
    "none.trunk": ("small", "{} trunk"),
    "mem.entropy": ("joint", "{}"),
    "mem.bank": (2_048, "bank {}"),
    "bonus.beta0": (0.2, "β_0 {}"),
}
"""What most trials had, and what is said of those that had something else."""


def list_trials(study: str) -> Lines:
    """Yield a line for each trial, by task, method and settings."""
    yield from sorted(_describe_trial(run) for run in read_runs(study))


def _describe_trial(run: TableRun) -> tuple[str, ...]:
    settings, parts = read_settings(run), {*run.method.split("+")}
    parts |= set() if "none" in parts else {"bonus"}
    every = settings["schedule.update_every_steps"]
    also = [
        said.format(settings[name])
        for name, (usual, said) in ALSO.items()
        if name.split(".")[0] in parts and settings[name] != usual
    ]
    _, episodes = run.series("training_episodes")
    _, rewarded = run.series("rewarded_episodes")
    return (
        f"`{run.task}`",
        f"`{run.method}`",
        f"{settings['replay.batch_size']} every {'step' if every == 1 else f'{every} steps'}",
        f"{settings['drqv2.lr']:g}",
        f"{settings['drqv2.std_steps'] * settings['env.action_repeat']:,}",
        ", ".join(also),
        str(run.seed),
        ", ".join(f"{value:.0f}" for value in run.series("return")[1][1:]),
        f"{rewarded.sum():.0f} of {episodes.sum():.0f}",
    )


GAME_TRIALS_HEAD = (
    *("task", "method", "change", "seed"),
    *("return of training episodes, each 100,000 frames", "steps of an episode, first 50,000 frames"),
)


def list_game_trials() -> Lines:
    """Yield the trials on games, those without a change first."""
    runs = read_runs("procgen_trials")
    for run in sorted(runs, key=lambda run: run.variant != "nothing"):
        means = ", ".join(f"{value:.1f}" for value in run.series("training_return_100k")[1])
        steps = f"{run.last('episode_length_50k'):.0f}"
        yield f"`{run.task}`", f"`{run.method}`", run.variant, str(run.seed), means, steps


TABLES: dict[str, tuple[tuple[str, ...], Callable[[], Lines]]] = {
    "base": (SCORES_HEAD, partial(list_scores, "base")),
    "bonus": (SCORES_HEAD, partial(list_scores, "bonus")),
    # Published policies see images.
    "state": (SCORES_HEAD, partial(list_scores, "state", with_published=False)),
    privileged.STUDY: (
        SCORES_HEAD,
        partial(list_scores, privileged.STUDY, ("", privileged.TEMPERATURE), with_published=False),
    ),
    "dmc": (HEAD, list_control),
    "diagnostics": (DIAGNOSTICS_HEAD, list_diagnostics),
    "dmc_ablation": (ABLATION_HEAD, list_ablation),
    "procgen": (GAMES_HEAD, list_games),
    "procgen_training": (TRAINED_GAMES_HEAD, list_trained_games),
    "dmc_trials": (TRIALS_HEAD, partial(list_trials, "dmc_trials")),
    "dmc_later_trials": (TRIALS_HEAD, partial(list_trials, "dmc_later_trials")),
    "procgen_trials": (GAME_TRIALS_HEAD, list_game_trials),
}


def make_table(name: str) -> str:
    head, body = TABLES[name]
    return format_table(head, body())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=TABLES)
    print(make_table(parser.parse_args().name))


if __name__ == "__main__":
    main()
