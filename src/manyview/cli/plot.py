"""`manyview plot`: plot learning curves of runs, optionally with published results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from manyview.cli.arguments import report_error
from manyview.report.curves import Curve, CurveGroup, ReturnSource, Unit, compute_mean_curve, group_curves, read_curve
from manyview.report.plotting import draw_curves
from manyview.report.published_results import read_published_results
from manyview.report.runs import BrokenRunError, find_all_runs
from manyview.utils.output_paths import PLOT_SUFFIXES, check_output_file
from manyview.utils.text import print_line


def plot(
    runs: Positional[
        Annotated[tuple[Path, ...], arg(metavar="RUN ...", help="Run directories, or directories that contain runs.")]
    ],
    *,
    out: Annotated[Path, arg(metavar="PNG", help="Image file to write: .png, .svg or .pdf.")],
    x: Annotated[Unit, arg(metavar="frames|steps|updates|seconds", help="Unit of the x axis.")] = "frames",
    published: Annotated[
        Path | None, arg(metavar="JSON", help="Published results to add to the plot.", help_behavior_hint="")
    ] = None,
    of: Annotated[
        ReturnSource,
        arg(
            metavar="evaluations|test_levels|episodes",
            help="Returns to plot: of evaluations, of evaluations on all levels (Procgen), or of training episodes.",
        ),
    ] = "evaluations",
) -> int:
    """Plot learning curves: one panel per task, one color per method, the mean over seeds.

    The band is the 95 % bootstrap interval of the mean; with one or two seeds, only the single curves are drawn.
    """
    if published is not None and x != "frames":
        return report_error(f"published results need frames on the x axis: expected --x frames, got --x {x}")
    if published is not None and of != "evaluations":
        return report_error(f"published results are of evaluations: expected --of evaluations, got --of {of}")
    try:
        check_output_file(out, PLOT_SUFFIXES)
        curves, notes = read_curves(runs, x, of)
        groups = group_curves(curves)
        rows = [] if published is None else read_published_results(published)
        if not groups:
            return report_error("; ".join(notes))
        draw_curves(out, groups, unit=x, published=rows, source=of)
    except (ValueError, OSError, ImportError) as error:
        return report_error(error)
    tasks = {group.task for group in groups}
    if published is not None and not any(row.task in tasks for row in rows):
        notes.append(f"{published} has no results for {', '.join(sorted(tasks))}")
    for group in groups:
        print_line(format_group(group, x))
        notes += [
            f"{group.task}, {group.label}: seed {seed} is included more than once" for seed in group.duplicate_seeds
        ]
    for note in notes:
        print_line(f"note: {note}")
    print_line(f"written to {out}")
    return 0


def read_curves(
    directories: Sequence[Path], unit: Unit, source: ReturnSource = "evaluations"
) -> tuple[list[Curve], list[str]]:
    """Return the curves of all runs below the directories, and a note for each run without a curve."""
    curves, notes = [], []
    for path in find_all_runs(directories):
        try:
            curve = read_curve(path, unit, source)
        except BrokenRunError as error:
            notes.append(f"skipped {error}")
            continue
        if len(curve.x):
            curves.append(curve)
        else:
            notes.append(f"skipped {path}: no {source.replace('_', ' ')} to plot")
    return curves, notes


def format_group(group: CurveGroup, unit: Unit) -> str:
    """Format the last return of a group, with its interval if there are enough seeds."""
    mean = compute_mean_curve(group)
    name = f"{group.task}, {group.label}, {group.seed_count_text}"
    if mean is None:
        last = ", ".join(f"{curve.returns[-1]:.1f} after {curve.x[-1]:,.0f}" for curve in group.curves)
        return f"{name}: {last} {unit}"
    low, high = (end[-1] for end in mean.interval)
    return f"{name}: {mean.returns[-1]:.1f} ({low:.1f} to {high:.1f}) after {mean.x[-1]:,.0f} {unit}"
