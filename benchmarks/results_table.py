"""The tables of docs/results.md, from the runs that are kept and the published figures beside them.

python -m benchmarks.results_table dmc
"""

import argparse
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
    ours = {(group.task, group.curves[0].method): group.curves for group in grouped(curves)}
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


def table(suite: str) -> str:
    lines = [HEAD, tuple("---" for _ in HEAD), *rows(suite)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=CELLS)
    print(table(parser.parse_args().suite))


if __name__ == "__main__":
    main()
