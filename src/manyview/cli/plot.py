"""`manyview plot`: learning curves of runs, side by side and beside published figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from manyview.cli.arguments import print_line, report_error
from manyview.report.curves import Curve, CurveGroup, ReturnSource, Unit, compute_mean_curve, group_curves, read_curve
from manyview.report.plotting import draw_curves
from manyview.report.published_results import read_published_results
from manyview.report.runs import BrokenRunError, find_runs


def plot(
    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN ...", help="Runs, or folders with runs below.")]],
    *,
    out: Annotated[Path, arg(metavar="PNG", help="Where to write the picture; .svg and .pdf are possible too.")],
    x: Annotated[Unit, arg(metavar="frames|steps|updates|seconds", help="What the curves are drawn over.")] = "frames",
    published: Annotated[
        Path | None, arg(metavar="JSON", help="Published figures to draw beside them.", help_behavior_hint="")
    ] = None,
    of: Annotated[
        ReturnSource,
        arg(
            metavar="evaluations|test_levels|episodes",
            help="Whose returns: those of evaluations, of Procgen's also those on all levels, or of training episodes.",
        ),
    ] = "evaluations",
) -> int:
    """Draw learning curves: a panel for each task, a colour for each method, the mean over seeds.

    The band is the 95 % bootstrap interval of the mean; with one or two seeds there are single curves only.
    """
    if published is not None and x != "frames":
        return report_error(f"published figures are by frames: leave out --published, or --x {x}")
    if published is not None and of != "evaluations":
        return report_error(f"published figures are of evaluations: leave out --published, or --of {of}")
    try:
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
        notes.append(f"{published} has no figures of {', '.join(sorted(tasks))}")
    for group in groups:
        print_line(format_group(group, x))
        notes += [f"{group.task}, {group.label}: seed {seed} counts more than once" for seed in group.duplicate_seeds]
    for note in notes:
        print_line(f"note: {note}")
    print_line(f"written to {out}")
    return 0


def read_curves(
    directories: Sequence[Path], unit: Unit, source: ReturnSource = "evaluations"
) -> tuple[list[Curve], list[str]]:
    """The curves of all runs below some folders, and a note on each run that has none."""
    paths: dict[Path, Path] = {}
    for directory in directories:
        run_paths = find_runs(directory)
        if not run_paths:
            raise ValueError(f"no run in or below {directory}" if directory.is_dir() else f"no folder {directory}")
        paths |= {path.resolve(): path for path in run_paths}  # `plot runs runs/*` names each run twice
    curves, notes = [], []
    for path in paths.values():
        try:
            curve = read_curve(path, unit, source)
        except BrokenRunError as error:
            notes.append(f"left out, {error}")
            continue
        if len(curve.x):
            curves.append(curve)
        else:
            notes.append(f"left out, {path}: no {source.replace('_', ' ')} to draw")
    return curves, notes


def format_group(group: CurveGroup, unit: Unit) -> str:
    """Where a group has come to."""
    mean = compute_mean_curve(group)
    name = f"{group.task}, {group.label}, {group.seed_count_text}"
    if mean is None:
        last = ", ".join(f"{curve.returns[-1]:.1f} after {curve.x[-1]:,.0f}" for curve in group.curves)
        return f"{name}: {last} {unit}"
    low, high = (end[-1] for end in mean.interval)
    return f"{name}: {mean.returns[-1]:.1f} ({low:.1f} to {high:.1f}) after {mean.x[-1]:,.0f} {unit}"
