"""The tables of docs/results.md, from the runs that are kept and the published figures beside them.

python -m benchmarks.results_table dmc       # the comparison on control tasks
python -m benchmarks.results_table meters    # how the meters stood in its runs with MEM
python -m benchmarks.results_table ablation  # what of MEM does what, on one of them
python -m benchmarks.results_table procgen   # that on games; procgen_training: the end of its training
python -m benchmarks.results_table trials    # what was tried before the first; later_trials: since
python -m benchmarks.results_table game_trials   # what was tried on games
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_tasks import (
    ABLATED,
    ABLATION,
    ABLATION_FRAMES,
    ABLATION_SEEDS,
    CELLS,
    KEPT,
    LEVELS,
    RANDOM,
    played_on,
)
from manyview.report.curves import Curve, group_curves, read_curve
from manyview.report.metrics_file import read_records
from manyview.report.published_results import read_published_results
from manyview.report.runs import METRICS_FILE, find_runs, read_config
from manyview.report.statistics import bootstrap_interval

ROOT = Path(__file__).parents[1]
HEAD = ("task", "method", "each seed", "mean at the end", "mean over the second half", "paid in each fifth")
PARTS = 5
CONTROL_TASKS = tuple(dict.fromkeys(task for task, _ in CELLS["dmc"]))


def by_cell(suite: str) -> dict[tuple[str, str], tuple[Curve, ...]]:
    """The curves of each task and method, by seed."""
    folder = ROOT / KEPT / f"{suite}_cpu"
    groups = group_curves(read_curve(path, "frames") for path in find_runs(folder))
    ours = {(group.task, group.curves[0].method): group.curves for group in groups}
    if len(ours) < len(groups):
        raise ValueError(f"runs of one task and method have different settings in {folder}")
    return ours


def control() -> Iterator[tuple[str, ...]]:
    """One for each task and method, in the order of the comparison, published methods after ours."""
    ours = by_cell("dmc")
    for task in CONTROL_TASKS:
        cells = [(name, ours[task, name]) for owner, name in CELLS["dmc"] if owner == task and (task, name) in ours]
        for method, seeds in cells:
            ends, halves = (
                [float(curve.returns[-1]) for curve in seeds],
                [_mean_of_last(1 / 2, curve) for curve in seeds],
            )
            each = ", ".join(f"{end:.0f}" for end in ends)
            paid = _paid(seeds, frames=int(seeds[0].x[-1]))
            yield f"`{task}`", f"`{method}`", each, _with_interval(ends), _with_interval(halves), paid
        if cells:
            yield from _published(task, frames=int(cells[0][1][0].x[-1]))


def _published(task: str, *, frames: int) -> Iterator[tuple[str, ...]]:
    for row in read_published_results(ROOT / KEPT / "published.json"):
        if (row.task, row.frames) == (task, frames):
            each = ", ".join(f"{one:.0f}" for one in row.returns)
            yield f"`{task}`", f"{row.method}, published", each, _with_interval(row.returns), "", ""


def _mean_of_last(share: float, curve: Curve) -> float:
    return float(curve.returns[curve.x > (1 - share) * curve.x[-1]].mean())


def _paid(seeds: Sequence[Curve], *, frames: int) -> str:
    """Of the episodes that were trained on, how many paid anything, in each part of so many frames: mean of seeds."""
    shares = []
    for curve in seeds:
        paid: list[list[bool]] = [[] for _ in range(PARTS)]
        for episode in read_records(curve.path / METRICS_FILE):
            if episode["kind"] == "episode" and episode["frames"] <= frames:
                paid[PARTS * (episode["frames"] - 1) // frames].append(episode["return"] > 0)
        shares.append([np.mean(part) for part in paid])
    return ", ".join(f"{share:.0%}" for share in np.mean(shares, axis=0))


def _with_interval(values: Sequence[float], *, digits: int = 0) -> str:
    mean = _rounded(np.mean(values), digits)
    if len(values) < 3:
        return mean
    low, high = (_rounded(end, digits) for end in bootstrap_interval(values))
    return f"{mean} ({low} to {high})"


def _rounded(value: Any, digits: int) -> str:
    return f"{round(float(value), digits) + 0.0:.{digits}f}"  # with 0 added there is no -0.0


METERS_HEAD = ("metric", *(f"`{task}`" for task in CONTROL_TASKS))
LEARNING = ("critic_loss", "critic_grad", "target_std", "value", "action_spread")
LOSSES = ("diff", "con", "adv", "discriminator", "floor", "decorrelation", "temporal", "mem")
HEALTH = ("contrast", "std", "rank", "share", "cosine", "discriminator_accuracy")
"""`std` stands for `std/VIEW` of every view, and so on."""


def meters() -> Iterator[tuple[str, ...]]:
    """Between what the middle nine tenths of the records lie, in all runs with MEM; then how many were healthy."""
    told = {
        task: [record for curve in seeds for record in _trained(curve)]
        for (task, method), seeds in by_cell("dmc").items()
        if method == "drqv2+mem"
    }
    for metric in (*LEARNING, *(f"{name}_loss" for name in LOSSES), *HEALTH):
        yield f"`{metric}`", *(_middle(told[task], metric) for task in CONTROL_TASKS)
    healthy = {task: sum(record["health"].startswith("healthy") for record in told[task]) for task in CONTROL_TASKS}
    yield "healthy records", *(f"{healthy[task]} of {len(told[task])}" for task in CONTROL_TASKS)


def _trained(curve: Curve) -> list[dict[str, Any]]:
    return [record for record in read_records(curve.path / METRICS_FILE) if record["kind"] == "train"]


def _middle(told: Sequence[Mapping[str, Any]], metric: str) -> str:
    values = [value for one in told for name, value in one.items() if name.split("/")[0] == metric]
    low, high = (float(f"{value:.3g}") for value in np.quantile(values, (0.05, 0.95)))
    return f"{low:,g} to {high:,g}"


ABLATION_HEAD = ("what was changed", "mean of evaluations, each seed", "mean", "paid in each fifth", "unmoved", "`std`")

UNMOVED = 0.1
"""`action_spread` of a policy that does the same whatever it sees."""


def ablation() -> Iterator[tuple[str, ...]]:
    """The first frames of the runs of the comparison, then what came of each change."""
    task, method = ABLATED
    for changed, name in (("nothing", method), ("`--method drqv2+none`", "drqv2+none")):
        yield _ablated(changed, [curve for curve in by_cell("dmc")[task, name] if curve.seed in ABLATION_SEEDS])
    for name, settings in ABLATION.items():
        if seeds := [read_curve(path, "frames") for path in find_runs(ROOT / KEPT / "ablation" / name)]:
            yield _ablated(" ".join(f"`{one}`" for one in settings), seeds)


def _ablated(changed: str, seeds: Sequence[Curve]) -> tuple[str, ...]:
    begins = [curve.returns[(curve.x > 0) & (curve.x <= ABLATION_FRAMES)] for curve in seeds]
    means = [float(returns.mean()) for returns in begins]
    told = [one for curve in seeds for one in _trained(curve) if one["frames"] <= ABLATION_FRAMES]
    unmoved = f"{sum(one['action_spread'] < UNMOVED for one in told)} of {len(told)}"
    each, paid = ", ".join(f"{mean:.0f}" for mean in means), _paid(seeds, frames=ABLATION_FRAMES)
    return changed, each, f"{np.mean(means):.0f}", paid, unmoved, _middle(told, "std") if "health" in told[0] else ""


GAMES_HEAD = ("task", "method", "each seed", "training levels", "times a random policy", "test levels", "gap")


def games() -> Iterator[tuple[str, ...]]:
    """One for each game and method: what the last policy of each run got."""
    ours = by_cell("procgen")
    random_returns = json.loads((ROOT / RANDOM).read_text())
    for task, method in (cell for cell in CELLS["procgen"] if cell in ours):
        by_chance = np.asarray(random_returns[task])
        random, paid = by_chance.mean(), (by_chance > 0).mean()
        seen, unseen = ([mean_played(curve, levels) for curve in ours[task, method]] for levels in LEVELS)
        gaps = [one - other for one, other in zip(seen, unseen, strict=True)]
        each = ", ".join(f"{value:.1f}" for value in seen)
        times = f"{np.mean(seen) / random:.1f} (random {random:.1f}, paid in {paid:.0%} of episodes)"
        means = [_with_interval(values, digits=1) for values in (seen, unseen, gaps)]
        yield f"`{task}`", f"`{method}`", each, means[0], times, *means[1:]


def mean_played(curve: Curve, levels: str) -> float:
    """What the last policy of a run got there on average."""
    return float(json.loads((curve.path / played_on(levels)).read_text())["mean"])


LAST = 1 / 5
TRAINED_GAMES_HEAD = ("task", "method", "changed", "return of training episodes, each seed", "ratios clipped")


def trained_games() -> Iterator[tuple[str, ...]]:
    """How the comparison on games stood in the last fifth of training, of which there are many more episodes.

    Then the same of runs in which one setting was changed, to tell what the differences come from.
    """
    ours = by_cell("procgen")
    for task, method in (cell for cell in CELLS["procgen"] if cell in ours):
        yield f"`{task}`", f"`{method}`", "nothing", *_end_of_training(curve.path for curve in ours[task, method])
    changed: dict[tuple[str, str, str], list[Path]] = {}
    for path in find_runs(ROOT / KEPT / "procgen_changed"):
        config = read_config(path)
        changed.setdefault((config["task"], config["method"], path.parent.name), []).append(path)
    for (task, method, setting), paths in changed.items():
        yield f"`{task}`", f"`{method}`", f"`{setting}`", *_end_of_training(paths)


def _end_of_training(paths: Iterable[Path]) -> tuple[str, str]:
    """Mean returns of each run, and how many ratios were clipped on average."""
    returns, clipped = [], []
    for path in paths:
        curve = read_curve(path, "frames", "episodes")
        returns.append(f"{_mean_of_last(LAST, curve):.2f}")
        late = (one for one in _trained(curve) if one["frames"] > (1 - LAST) * curve.x[-1])
        clipped.append(np.mean([one["clipped"] for one in late]))
    return ", ".join(returns), f"{np.mean(clipped):.0%}"


TRIALS_HEAD = (
    *("task", "method", "rows", "rate", "noise, frames", "further", "seed"),
    *("return after 10,000, 20,000 ... frames", "episodes paid"),
)
FURTHER = {
    "drqv2.shift_pixels": (4, "shift {}"),
    "none.trunk": ("small", "{} trunk"),
    "mem.entropy": ("joint", "{}"),
    "mem.bank": (2_048, "bank {}"),
    "bonus.beta0": (0.2, "β_0 {}"),
}
"""What most trials had, and what is said of those that had something else."""


def trials(folder: str) -> Iterator[tuple[str, ...]]:
    """One for each run that is kept of what was tried, by task, method and settings."""
    yield from sorted(_trial(path) for path in find_runs(ROOT / KEPT / folder))


def _trial(path: Path) -> tuple[str, ...]:
    config = json.loads((path / "config.json").read_text())
    told = list(read_records(path / METRICS_FILE))
    every, repeat = config["schedule"]["update_every_steps"], config["env"]["action_repeat"]
    parts = {*config["method"].split("+")} | ({"bonus"} if not config["method"].endswith("+none") else set())
    further = [
        said.format(value)
        for name, (usual, said) in FURTHER.items()
        if (value := config[name.split(".")[0]][name.split(".")[1]]) != usual and name.split(".")[0] in parts
    ]
    evaluations = [f"{record['return']:.0f}" for record in told if record["kind"] == "evaluation"]
    episodes = [record["return"] for record in told if record["kind"] == "episode"]
    return (
        f"`{config['task']}`",
        f"`{config['method']}`",
        f"{config['replay']['batch_size']} every {'step' if every == 1 else f'{every} steps'}",
        f"{config['drqv2']['lr']:g}",
        f"{config['drqv2']['std_steps'] * repeat:,}",
        ", ".join(further),
        str(config["seed"]),
        ", ".join(evaluations[1:]),
        f"{sum(paid > 0 for paid in episodes)} of {len(episodes)}",
    )


GAME_TRIALS_HEAD = (
    *("task", "method", "what was changed", "seed"),
    *("return of training episodes, each 100,000 frames", "steps of those in the first 50,000"),
)


def game_trials() -> Iterator[tuple[str, ...]]:
    """What was tried on games, after the first seed of the comparison without a bonus."""
    tried = find_runs(ROOT / KEPT / "procgen_trials")
    for path in sorted(tried, key=lambda path: (path.name != "nothing", path)):
        config = json.loads((path / "config.json").read_text())
        episodes = [record for record in read_records(path / METRICS_FILE) if record["kind"] == "episode"]
        returns: dict[int, list[float]] = {}
        for episode in episodes:
            returns.setdefault(episode["frames"] // 100_000, []).append(episode["return"])
        means = ", ".join(f"{np.mean(some):.1f}" for some in returns.values() if len(some) > 100)
        steps = np.mean([episode["length"] for episode in episodes if episode["frames"] < 50_000])
        yield f"`{config['task']}`", f"`{config['method']}`", path.name, str(config["seed"]), means, f"{steps:.0f}"


TABLES: dict[str, tuple[tuple[str, ...], Callable[[], Iterable[tuple[str, ...]]]]] = {
    "dmc": (HEAD, control),
    "meters": (METERS_HEAD, meters),
    "ablation": (ABLATION_HEAD, ablation),
    "procgen": (GAMES_HEAD, games),
    "procgen_training": (TRAINED_GAMES_HEAD, trained_games),
    "trials": (TRIALS_HEAD, partial(trials, "trials")),
    "later_trials": (TRIALS_HEAD, partial(trials, "later_trials")),
    "game_trials": (GAME_TRIALS_HEAD, game_trials),
}


def table(name: str) -> str:
    head, body = TABLES[name]
    return in_markdown(head, body())


def in_markdown(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=TABLES)
    print(table(parser.parse_args().name))


if __name__ == "__main__":
    main()
