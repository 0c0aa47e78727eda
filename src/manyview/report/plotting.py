"""Plots of learning curves, one panel per task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from manyview.report.curves import CurveGroup, ReturnSource, Unit, compute_mean_curve
from manyview.report.published_results import PublishedResult
from manyview.report.statistics import bootstrap_interval
from manyview.utils.optional_imports import import_optional
from manyview.utils.output_paths import PLOT_SUFFIXES, check_output_file
from manyview.utils.text import format_count

X_LABELS: Mapping[Unit, str] = {
    "frames": "simulator frames, action repeat included",
    "steps": "agent steps",
    "updates": "updates",
    "seconds": "seconds since the start of the run",
}
Y_LABELS: Mapping[ReturnSource, str] = {
    "evaluations": "evaluation return",
    "test_levels": "evaluation return on test levels",
    "episodes": "training episode return",
}
Band = Literal["interval", "std"]
"""Band around a mean: its 95 % interval, or the standard deviation over seeds."""
# Okabe and Ito's colors, which most people can tell apart; black and gray are reserved for published results.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINE_STYLES = ("-", "--", ":", "-.")
MARKERS = ("D", "s", "^", "v", "P", "X")
MAX_COLUMNS = 3
PANEL_INCHES = (6.0, 4.2)
DOTS_PER_INCH = 120
MAX_PANELS = 99
SAFE_RC_PARAMS = {"text.parse_math": False, "text.usetex": False, "agg.path.chunksize": 10_000}
"""Text is not parsed as formulas or TeX, and curves of a million points are drawn in parts."""


def draw_curves(
    path: Path,
    groups: Sequence[CurveGroup],
    *,
    unit: Unit,
    published: Sequence[PublishedResult] = (),
    source: ReturnSource = "evaluations",
    tasks: Sequence[str] = (),
    band: Band = "interval",
) -> None:
    """Plot the groups to an image file whose format follows from its suffix: .png, .svg or .pdf.

    Groups of at least 3 seeds show the mean with its 95 % interval and thin single curves; smaller ones, single curves.
    `band="std"` shows the mean and the standard deviation alone. `tasks` are panels in this order, also without curves.

    Raises:
        ValueError: The suffix is not supported, or there are too many tasks.

    """
    import_optional("matplotlib", extra="plots")
    from matplotlib import rc_context

    check_output_file(path, PLOT_SUFFIXES)  # among others of matplotlib, .pgf would run LaTeX on text from the runs
    by_task: dict[str, list[CurveGroup]] = {task: [] for task in tasks}
    for group in groups:
        by_task.setdefault(group.task, []).append(group)
    if len(by_task) > MAX_PANELS:
        raise ValueError(f"too many tasks for one image: expected at most {MAX_PANELS}, got {len(by_task)}")
    with rc_context(SAFE_RC_PARAMS):
        figure = _build_figure(by_task, groups, unit=unit, published=published, source=source, band=band)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DOTS_PER_INCH)


def _build_figure(
    by_task: Mapping[str, Sequence[CurveGroup]],
    groups: Sequence[CurveGroup],
    *,
    unit: Unit,
    published: Sequence[PublishedResult],
    source: ReturnSource,
    band: Band,
) -> Any:
    from matplotlib.figure import Figure

    columns = min(MAX_COLUMNS, len(by_task))
    rows = -(-len(by_task) // columns)
    # Without pyplot, which would keep the figure and choose a window system.
    figure = Figure(figsize=(columns * PANEL_INCHES[0], rows * PANEL_INCHES[1]), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    styles = _assign_styles(groups)
    for axes, (task, task_groups) in zip(panels, by_task.items(), strict=False):
        for group in task_groups:
            _draw_group(axes, group, band, **styles[group.label])
        _draw_published(axes, [row for row in published if row.task == task])
        _format_axes(axes, task, unit, source)
    for axes in panels[len(by_task) :]:
        axes.set_visible(False)
    return figure


def _assign_styles(groups: Sequence[CurveGroup]) -> dict[str, dict[str, str]]:
    """Return color and line style by label, equal in all panels."""
    labels = sorted({group.label for group in groups})
    return {
        label: {
            "color": COLORS[number % len(COLORS)],
            "linestyle": LINE_STYLES[number // len(COLORS) % len(LINE_STYLES)],
        }
        for number, label in enumerate(labels)
    }


def _draw_group(axes: Any, group: CurveGroup, band: Band, *, color: str, linestyle: str) -> None:
    label = _format_legend(f"{group.label} ({group.seed_count_text})")
    mean = compute_mean_curve(group)
    if mean is None:
        for number, curve in enumerate(group.curves):
            axes.plot(
                curve.x,
                curve.returns,
                color=color,
                linestyle=linestyle,
                linewidth=1.4,
                marker="o" if len(curve.x) == 1 else None,
                label=label if number == 0 else None,
            )
        return
    if band == "interval":
        for curve in group.curves:
            axes.plot(curve.x, curve.returns, color=color, linestyle=linestyle, linewidth=0.7, alpha=0.4)
    low, high = mean.interval if band == "interval" else (mean.returns - mean.std, mean.returns + mean.std)
    axes.fill_between(mean.x, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(mean.x, mean.returns, color=color, linestyle=linestyle, linewidth=2.2, label=label)


def _draw_published(axes: Any, rows: Sequence[PublishedResult]) -> None:
    """Draw published results within the range of the curves.

    Points have 95 % intervals; a dotted line marks the last point of each method.
    """
    _, end = axes.dataLim.intervalx
    methods = sorted({row.method for row in rows})
    for number, method in enumerate(methods):
        points = sorted((r for r in rows if r.method == method and r.frames <= 1.02 * end), key=lambda r: r.frames)
        if not points:
            continue
        gray = "black" if number % 2 == 0 else "#808080"
        last = float(np.mean(points[-1].returns))
        axes.axhline(last, color=gray, linestyle=":", linewidth=1, zorder=0)
        axes.errorbar(
            [row.frames for row in points],
            [np.mean(row.returns) for row in points],
            yerr=np.transpose([_compute_error_bars(row.returns) for row in points]),
            color=gray,
            linestyle="none",
            marker=MARKERS[number % len(MARKERS)],
            markersize=6,
            capsize=3,
            linewidth=1,
            zorder=5,
            label=_format_published_label(points[-1]),
        )


def _format_published_label(row: PublishedResult) -> str:
    views = "" if row.views is None else f"{format_count(row.views, 'view')}, "
    return _format_legend(f"{row.method}, published ({views}{format_count(len(row.returns), 'seed')})")


def _format_legend(label: str) -> str:
    """Return a label that matplotlib shows: it hides labels that start with an underscore."""
    return f" {label}" if label.startswith("_") else label


def _compute_error_bars(returns: Sequence[float]) -> tuple[float, float]:
    """Return the distances of the 95 % interval below and above the mean."""
    if len(returns) < 2:
        return 0.0, 0.0
    mean, (low, high) = float(np.mean(returns)), bootstrap_interval(returns)
    return max(0.0, mean - float(low)), max(0.0, float(high) - mean)


def _format_axes(axes: Any, task: str, unit: Unit, source: ReturnSource) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_title(task)
    axes.set_xlabel(X_LABELS[unit])
    axes.set_ylabel(Y_LABELS[source])
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.has_data():
        axes.legend(fontsize=8)
    else:
        axes.text(0.5, 0.5, "no runs yet", transform=axes.transAxes, ha="center", color="#808080")
        axes.set(xticks=[], yticks=[])
