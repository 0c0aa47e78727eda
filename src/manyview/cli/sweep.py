"""`manyview sweep`: train many runs on Ray; repeat the command to resume unfinished ones."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.cli.arguments import EXIT_FAILED, EXIT_INTERRUPTED, report_error
from manyview.cli.runs import print_runs
from manyview.report.runs import RunSummary, summarize_run
from manyview.scale.cluster import connect
from manyview.scale.search import Search, format_directory_name
from manyview.scale.sweep import PlannedRun, Sweep, compute_mean_return, get_log_path, read_sweep
from manyview.scale.sweep_estimate import HEADINGS, GroupEstimate, estimate_groups, format_total
from manyview.utils.text import print_line

TABLE_EVERY_S = 60.0
"""Time between two tables of the running runs."""


def sweep(
    file: Positional[Annotated[Path, arg(metavar="SWEEP.toml", help="File with tasks, methods, seeds and settings.")]],
    *,
    address: Annotated[
        str | None,
        arg(
            metavar="HOST:PORT",
            help="Address of a Ray cluster whose machines share the file system of the runs.",
            help_behavior_hint="(default: this machine)",
        ),
    ] = None,
    accept_changes: Annotated[
        bool,
        FlagCreatePairsOff,
        arg(help="Resume even if versions, threads or the CPU have changed; results are then not bit-identical."),
    ] = False,
    dry_run: Annotated[
        bool, FlagCreatePairsOff, arg(help="Only list the runs, and estimate their hours and memory.")
    ] = False,
) -> int:
    """Train every combination of tasks, methods and seeds, or search for settings.

    Repeat the command to resume unfinished runs, each from its newest checkpoint.
    `manyview runs` lists them at any time.
    """
    try:
        spec = read_sweep(file)
    except (ValueError, TypeError, OSError) as error:
        return report_error(error)
    return execute_sweep(spec, address=address, accept_changes=accept_changes, dry_run=dry_run)


def execute_sweep(spec: Sweep, *, address: str | None, accept_changes: bool, dry_run: bool) -> int:
    """Train the runs of a sweep or search, or list them with their estimated costs; return the exit status."""
    try:
        planned = spec.plan_runs()
    except (ValueError, TypeError, OSError) as error:
        return report_error(error)
    counts_text = _format_counts(planned, summarize_planned(planned))
    if spec.search is None:
        print_line(f"{len(planned)} runs in {spec.out}: {counts_text}")
    else:
        fields = ", ".join(spec.search.fields)
        print_line(f"search of {spec.search.trials} trials over {fields} in {spec.out}: {counts_text or 'not started'}")
    if dry_run:
        for planned_run in planned:
            print_line(f"  {planned_run.run_dir}")
        print_estimates(planned if spec.search is None else _plan_trials(spec, spec.search))
        return 0
    try:
        with connect(address, cpus=ceil(spec.cpus)):
            from manyview.scale.tune import run_search, run_sweep

            if spec.search is None:
                finished = run_sweep(spec, planned, SweepProgress(lambda: planned), accept_changes=accept_changes)
            else:
                progress = SweepProgress(spec.plan_runs)
                finished = run_search(spec, spec.search, progress, accept_changes=accept_changes)
    except (ImportError, ValueError, OSError) as error:
        return report_error(error)
    except KeyboardInterrupt:
        print("stopped. Repeat the command to resume")
        return EXIT_INTERRUPTED
    if spec.search is not None:
        _print_best(spec)
    elif summaries := summarize_planned(planned):  # runs that failed to start have no directory
        print_runs(summaries)
    return 0 if finished else EXIT_FAILED


def _plan_trials(spec: Sweep, search: Search) -> list[PlannedRun]:
    """Return as many runs as the search will train, all with the same values."""
    return spec.plan_trial(next(iter(search.iter_corners()))) * search.trials


def print_estimates(planned: Iterable[PlannedRun]) -> None:
    """Measure and print hours and memory of the unfinished runs, a row per method."""
    groups: list[GroupEstimate] = []
    for group in estimate_groups(planned):
        if not groups:
            print_line(_align_cells(HEADINGS))
        groups.append(group)
        print_line(_align_cells(group.format_cells()))
    if groups:
        print_line(f"to come: {format_total(groups)}. Each row is measured on one run, on this machine")


def _align_cells(cells: Sequence[str]) -> str:
    widths = (24, 28, 5, 10, 20, 0)  # rows appear one by one, when the others are not known yet
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


def _print_best(spec: Sweep) -> None:
    """Print the finished trials of a search, best first."""
    trials = [
        (compute_mean_return(spec.plan_trial(values)), format_directory_name(values)) for values in spec.find_tried()
    ]
    finished = [(mean_return, name) for mean_return, name in trials if mean_return is not None]
    for mean_return, name in sorted(finished, reverse=True):
        print_line(f"{mean_return:10.1f}  {name}")


class SweepProgress:
    """Callback that prints a line per event, and a table of the running runs every minute."""

    def __init__(self, planned: Callable[[], Sequence[PlannedRun]]) -> None:
        self._planned, self._last_s = planned, monotonic()
        self._running: set[Path] = set()

    def on_start(self, planned: PlannedRun) -> None:
        self._running.add(planned.run_dir)
        self._print(planned, "resumed" if planned.run_dir.exists() else "started")

    def on_finish(self, planned: PlannedRun) -> None:
        self._running.discard(planned.run_dir)
        summary = summarize_run(planned.run_dir)
        self._print(
            planned, "finished" if summary.last_return is None else f"finished, return {summary.last_return:.1f}"
        )

    def on_failure(self, planned: PlannedRun, reason: str, *, attempts: int, given_up: bool) -> None:
        self._running.discard(planned.run_dir)
        outcome = f"given up after {attempts} attempts" if given_up else f"crashed ({attempts}), will be resumed"
        self._print(planned, f"{outcome}: {reason}; see {os.path.relpath(get_log_path(planned))}")

    def on_tick(self) -> None:
        if monotonic() - self._last_s > TABLE_EVERY_S:
            self._last_s = monotonic()
            planned = self._planned()
            summaries = summarize_planned(planned, started=self._running)
            print(_format_counts(planned, summaries))
            if running := [summary for summary in summaries if summary.state == "running"]:
                print_runs(running)
            sys.stdout.flush()

    def _print(self, planned: PlannedRun, message: str) -> None:
        print_line(f"{os.path.relpath(planned.run_dir)}: {message}")


def summarize_planned(planned: Sequence[PlannedRun], *, started: Set[Path] = frozenset()) -> list[RunSummary]:
    """Summarize the planned runs that have a directory.

    Runs in `started` count as running if their state is unknown, as it is for runs on other machines.
    """
    summaries = [summarize_run(run.run_dir) for run in planned if run.run_dir.exists()]
    return [
        replace(run, state="running") if run.state == "unknown" and run.path in started else run for run in summaries
    ]


def _format_counts(planned: Sequence[PlannedRun], summaries: Sequence[RunSummary]) -> str:
    states = Counter[str](summary.state for summary in summaries)
    states["not started"] = len(planned) - len(summaries)
    return ", ".join(f"{count} {state}" for state, count in states.items() if count)
