"""Experiments of the paper: a sweep file for each figure and table, beside this module.

The table `figure` of a file says what the paper shows and leaves open. Settings beside a preset belong to the paper's
size; those of conditions without a preset hold at every size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np

from manyview.report.curves import Curve, CurveGroup, ReturnSource, read_curve
from manyview.report.runs import BrokenRunError
from manyview.scale.sweep import PlannedRun, Sweep, check_choice, read_sweep
from manyview.training import RunDir

Size = Literal["paper", "cpu"]
FIGURES: Mapping[str, Path] = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.toml"))}
"""Sweep files by name of the figure or table."""
CPU_MEMORY_GB = 3.0


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """A figure or table of the paper, with the runs for it."""

    name: str
    title: str
    shows: str
    """Result of the paper in a sentence."""
    open: Sequence[str]
    """Questions that the paper leaves open, with our answers."""
    returns: ReturnSource
    """Returns that the figure shows."""
    published: Mapping[str, Sequence[str]]
    """Values of the paper by task, one per method; empty for plots."""
    methods: Sequence[str]
    """Methods in the order of the file, which that of `published` follows."""
    sweep: Sweep

    @property
    def is_table(self) -> bool:
        return bool(self.published)


@dataclass(frozen=True, kw_only=True)
class FigureRuns:
    """Curves of a figure's runs, and what is missing."""

    groups: Sequence[CurveGroup]
    """Curves by task and method, in the order of the sweep; cells without a run are left out."""
    notes: Sequence[str]
    """A line for each task and method with missing or unfinished runs, and for each method that cannot be planned."""
    planned: int
    read: int


def read_figure(name: str, size: Size = "paper") -> PaperFigure:
    """Read the file of a figure or table; at another size, its preset replaces those of the file.

    Raises:
        ValueError: There is no such figure; the message lists all.

    """
    check_choice(name, FIGURES, "figure")
    sweep = read_sweep(FIGURES[name])
    figure, methods = sweep.figure, sweep.methods
    if size != "paper":
        sweep = _resize(sweep, size)
    return PaperFigure(
        name=name,
        title=figure["title"],
        shows=figure["shows"],
        open=figure["open"],
        returns=figure["returns"],
        published=figure.get("published", {}),
        methods=methods,
        sweep=sweep,
    )


def _resize(sweep: Sweep, size: Size) -> Sweep:
    """Return the sweep with the preset of another size, for machines without an accelerator."""
    where = tuple(condition for condition in sweep.where if condition.preset is None)
    out = f"{sweep.out}_{size}"
    return replace(sweep, preset=size, where=where, out=out, gpus=0.0, memory_gb=CPU_MEMORY_GB)


def select_runs(
    sweep: Sweep, tasks: Sequence[str] | None, methods: Sequence[str] | None, seeds: Sequence[int] | None
) -> Sweep:
    """Return the part of a sweep with these tasks, methods and seeds; None selects all.

    Raises:
        ValueError: A task, method or seed is not in the sweep.

    """
    selected = {"tasks": tasks, "methods": methods, "seeds": seeds}
    parts = {name: tuple(values) for name, values in selected.items() if values is not None}
    for name, values in parts.items():
        for value in values:
            check_choice(value, getattr(sweep, name), name.removesuffix("s"))
    return replace(sweep, **parts)  # type: ignore[arg-type]


def plan_methods(sweep: Sweep) -> tuple[list[PlannedRun], list[str]]:
    """Return the runs of all methods that are installed, and a line for each other method."""
    planned, notes = list[PlannedRun](), list[str]()
    for method in sweep.methods:
        try:
            planned += replace(sweep, methods=(method,)).plan_runs()
        except ValueError as error:
            notes.append(f"{method}: {error}")
    return planned, notes


def collect_runs(figure: PaperFigure) -> FigureRuns:
    """Read the curves of all runs of a figure that exist, finished or not."""
    planned, reasons = plan_methods(figure.sweep)
    groups, notes = list[CurveGroup](), [f"missing: {reason}" for reason in reasons]
    cells: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in planned:
        cells.setdefault((run.config.task, run.config.method), []).append(run)
    for task, method in product(figure.sweep.tasks, figure.sweep.methods):
        runs = cells.get((task, method), [])
        curves = tuple(_read_curves(runs, figure.returns))
        if curves:
            groups.append(CurveGroup(task=task, label=method, curves=curves))
        read = {curve.seed for curve in curves}
        finished = {run.config.seed for run in runs if RunDir(run.run_dir).is_finished}
        for state, seeds in (("missing", {run.config.seed for run in runs} - read), ("unfinished", read - finished)):
            if seeds:
                notes.append(f"{state}: {task}, {method}: seeds {', '.join(map(str, sorted(seeds)))}")
    return FigureRuns(groups=groups, notes=notes, planned=len(planned), read=sum(len(group.curves) for group in groups))


def _read_curves(runs: Sequence[PlannedRun], source: ReturnSource) -> Iterator[Curve]:
    for run in runs:
        try:
            curve = read_curve(run.run_dir, "frames", source)
        except BrokenRunError:
            continue
        if len(curve.x):
            yield curve


def format_table(figure: PaperFigure, groups: Sequence[CurveGroup]) -> list[str]:
    """Return a Markdown table of last returns, mean ± standard deviation over seeds, before the paper's values."""
    ours = {(group.task, group.label): _format_cell(group) for group in groups}
    methods = figure.sweep.methods
    rows = [("game", *methods), ("---",) * (1 + len(methods))]
    for task in figure.sweep.tasks:
        published = dict(zip(figure.methods, figure.published[task], strict=True))
        cells = (f"{ours.get((task, method), 'no runs')} / {published[method]}" for method in methods)
        rows.append((task, *cells))
    return [f"| {' | '.join(row)} |" for row in rows]


def _format_cell(group: CurveGroup) -> str:
    last = [curve.returns[-1] for curve in group.curves]
    return f"{np.mean(last):.1f}±{np.std(last):.1f} ({group.seed_count_text})"
