"""`manyview paper`: list, explain, run and plot the experiments of the paper."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.cli.arguments import EXIT_FAILED, report_error
from manyview.cli.sweep import execute_sweep
from manyview.report.plotting import draw_curves
from manyview.scale.paper import (
    FIGURES,
    FigureRuns,
    PaperFigure,
    Size,
    collect_runs,
    format_table,
    plan_methods,
    read_figure,
    select_runs,
)
from manyview.scale.sweep_estimate import GroupEstimate, estimate_groups, format_total
from manyview.training import RunDir
from manyview.utils.text import format_count, print_line


def paper(
    action: Positional[
        Annotated[Literal["list", "show", "run", "plot"], arg(metavar="list|show|run|plot", help="What to do.")]
    ],
    figure: Positional[
        Annotated[
            str | None,
            arg(
                metavar="[FIGURE]",
                help="Figure or table, such as figure_3 or table_2.",
                help_behavior_hint="(required, but for list)",
            ),
        ]
    ] = None,
    *,
    size: Annotated[
        Size, arg(metavar="paper|cpu", help="Size of the runs: the paper's, or that of the preset cpu.")
    ] = "paper",
    tasks: Annotated[
        tuple[str, ...] | None, arg(metavar="TASK ...", help="Only these tasks.", help_behavior_hint="(default: all)")
    ] = None,
    methods: Annotated[
        tuple[str, ...] | None,
        arg(metavar="METHOD ...", help="Only these methods.", help_behavior_hint="(default: all)"),
    ] = None,
    seeds: Annotated[
        tuple[int, ...] | None, arg(metavar="N ...", help="Only these seeds.", help_behavior_hint="(default: all)")
    ] = None,
    runs: Annotated[
        Path | None,
        arg(
            metavar="DIRECTORY",
            help="Directory of the runs.",
            help_behavior_hint="(default: runs/paper, or runs/paper_cpu)",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        arg(
            metavar="FILE",
            help="With plot: image to write, or Markdown file for a table.",
            help_behavior_hint="(default: FIGURE.png; a table is printed)",
        ),
    ] = None,
    address: Annotated[
        str | None,
        arg(
            metavar="HOST:PORT",
            help="With run: address of a Ray cluster.",
            help_behavior_hint="(default: this machine)",
        ),
    ] = None,
    accept_changes: Annotated[
        bool, FlagCreatePairsOff, arg(help="With run: resume even if versions, threads or the CPU have changed.")
    ] = False,
    dry_run: Annotated[
        bool, FlagCreatePairsOff, arg(help="With run and list: only estimate hours and memory.")
    ] = False,
) -> int:
    """List, explain, run and plot the experiments of the paper.

    `run` trains the runs of a figure on Ray as `manyview sweep` does; repeat it to resume.
    `plot` draws whatever runs exist in the paper's layout and names those that are missing.
    Figures share runs of equal settings.
    """
    if action == "list":
        return _print_list(size, dry_run=dry_run)
    try:
        chosen = read_figure(figure or "", size)
        sweep = select_runs(chosen.sweep, tasks, methods, seeds)
    except ValueError as error:
        return report_error(error)
    chosen = replace(chosen, sweep=sweep if runs is None else replace(sweep, out=str(runs)))
    if action == "show":
        for line in _describe(chosen, size):
            print_line(line)
        return 0
    if action == "run":
        return execute_sweep(chosen.sweep, address=address, accept_changes=accept_changes, dry_run=dry_run)
    return _plot(chosen, out)


def _print_list(size: Size, *, dry_run: bool) -> int:
    known: dict[str, GroupEstimate] = {}
    for name in FIGURES:
        figure = read_figure(name, size)
        print_line(f"{name:<8}  {_count_runs(figure):>3} runs  {figure.title}")
        if dry_run:
            planned, notes = plan_methods(figure.sweep)
            print_line(f"          {format_total(list(estimate_groups(planned, known)))}")
            for note in notes:
                print_line(f"          not installed: {note}")
    return 0


def _count_runs(figure: PaperFigure) -> int:
    return len(figure.sweep.tasks) * len(figure.sweep.methods) * len(figure.sweep.seeds)


def _describe(figure: PaperFigure, size: Size) -> Iterator[str]:
    """Yield what the paper shows and leaves open, the runs with their settings, and the commands."""
    planned, notes = plan_methods(figure.sweep)
    finished = sum(RunDir(run.run_dir).is_finished for run in planned)
    yield f"{figure.name.replace('_', ' ').capitalize()}: {figure.title}"
    yield f"paper     {figure.shows}"
    for number, question in enumerate(figure.open):
        yield f"{'' if number else 'open':<10}{question}"
    yield f"runs      {_count_runs(figure)} in {figure.sweep.out}, {finished} finished"
    for method in figure.sweep.methods:
        yield f"          {method:<14}{_describe_method(figure, method)}"
    yield from (f"missing   {note}" for note in notes)
    option = "" if size == "paper" else f" --size {size}"
    yield f"command   manyview paper run {figure.name}{option}"
    yield f"          manyview paper plot {figure.name}{option}"
    yield f"file      {FIGURES[figure.name]}"


def _describe_method(figure: PaperFigure, method: str) -> str:
    """Return preset and settings of a method on the first task."""
    task = figure.sweep.tasks[0]
    conditions = [condition for condition in figure.sweep.where if condition.matches(task, method)]
    presets = [figure.sweep.preset, *(condition.preset for condition in conditions if condition.preset)]
    settings = [f"{name}={value}" for condition in conditions for name, value in condition.settings.items()]
    return ", ".join((f"preset {presets[-1]}", *settings))


def _plot(figure: PaperFigure, out: Path | None) -> int:
    try:
        found = collect_runs(figure)
        if found.groups:
            _write(figure, found, out)
    except (ValueError, OSError, ImportError) as error:
        return report_error(error)
    for note in found.notes:
        print_line(note)
    if not found.groups:
        report_error(f"no runs of {figure.name} in {figure.sweep.out}. Train them with `manyview paper run`")
        return EXIT_FAILED
    print_line(f"{found.read} of {format_count(found.planned, 'run')} have returns")
    return 0


def _write(figure: PaperFigure, found: FigureRuns, out: Path | None) -> None:
    if figure.is_table:
        lines = format_table(figure, found.groups)
        for line in lines:
            print_line(line)
        if out is not None:
            out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        out = out or Path(f"{figure.name}.png")
        draw_curves(out, found.groups, unit="frames", source=figure.returns, tasks=figure.sweep.tasks, band="std")
    if out is not None:
        print_line(f"written to {out}")
