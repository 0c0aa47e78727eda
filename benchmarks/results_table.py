"""The tables of docs/results.md, from the runs that are kept and the published figures beside them.

python -m benchmarks.results_table dmc       # the comparison
python -m benchmarks.results_table trials    # what was tried before it
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.real_tasks import CELLS, KEPT
from manyview.report.curves import Curve, grouped, read_curve
from manyview.report.published import read_published
from manyview.report.runs import find_runs
from manyview.report.statistics import interval_of_mean

ROOT = Path(__file__).parents[1]
HEAD = ("task", "method", "each seed", "mean at the end", "mean over the second half")


def rows(suite: str) -> Iterator[tuple[str, ...]]:
    """One for each task and method, in the order of the comparison, published methods after ours."""
    curves = [read_curve(path, "frames") for path in find_runs(ROOT / KEPT / f"{suite}_cpu")]
    groups = grouped(curves)
    ours = {(group.task, group.curves[0].method): group.curves for group in groups}
    if len(ours) < len(groups):
        raise ValueError(f"runs of one task and method have different settings in {KEPT / f'{suite}_cpu'}")
    for task in dict.fromkeys(task for task, _ in CELLS[suite]):
        cells = [(name, ours[task, name]) for owner, name in CELLS[suite] if owner == task and (task, name) in ours]
        for method, seeds in cells:
            ends, halves = [float(curve.returns[-1]) for curve in seeds], [_second_half(curve) for curve in seeds]
            each = ", ".join(f"{end:.0f}" for end in ends)
            yield f"`{task}`", f"`{method}`", each, _with_interval(ends), _with_interval(halves)
        if cells:
            yield from _published(task, frames=int(cells[0][1][0].x[-1]))


def _published(task: str, *, frames: int) -> Iterator[tuple[str, ...]]:
    for row in read_published(ROOT / KEPT / "published.json"):
        if (row.task, row.frames) == (task, frames):
            each = ", ".join(f"{one:.0f}" for one in row.returns)
            yield f"`{task}`", f"{row.method}, published", each, _with_interval(row.returns), ""


def _second_half(curve: Curve) -> float:
    return float(curve.returns[curve.x > curve.x[-1] / 2].mean())


def _with_interval(values: Sequence[float]) -> str:
    if len(values) < 3:
        return f"{np.mean(values):.0f}"
    low, high = interval_of_mean(values)
    return f"{np.mean(values):.0f} ({low:.0f} to {high:.0f})"


TRIALS_HEAD = (
    *("task", "method", "rows", "rate", "noise, frames", "further", "seed"),
    *("return after 10,000, 20,000 ... frames", "episodes paid"),
)
FURTHER = {
    "drqv2.shift_pixels": (4, "shift {}"),
    "none.trunk": ("small", "{} trunk"),
    "mem.entropy": ("joint", "{}"),
    "mem.bank": (2_048, "bank {}"),
}
"""What most trials had, and what is said of those that had something else."""


def trials() -> Iterator[tuple[str, ...]]:
    """One for each run that is kept of what was tried, by task, method and settings."""
    yield from sorted(_trial(path) for path in find_runs(ROOT / KEPT / "trials"))


def _trial(path: Path) -> tuple[str, ...]:
    config = json.loads((path / "config.json").read_text())
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    every, repeat = config["schedule"]["update_every_steps"], config["env"]["action_repeat"]
    further = [
        said.format(value)
        for name, (usual, said) in FURTHER.items()
        if (value := config[name.split(".")[0]][name.split(".")[1]]) != usual
        and name.split(".")[0] in ("drqv2", *config["method"].split("+"))
    ]
    evaluations = [f"{record['return']:.0f}" for record in records if record["kind"] == "evaluation"]
    episodes = [record["return"] for record in records if record["kind"] == "episode"]
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


def table(suite: str) -> str:
    head, body = (TRIALS_HEAD, trials()) if suite == "trials" else (HEAD, rows(suite))
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=[*CELLS, "trials"])
    print(table(parser.parse_args().suite))


if __name__ == "__main__":
    main()
