"""Learning curves as a picture: a panel for each task."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from manyview.envs.optional import optional
from manyview.report.curves import Group, Returns, Unit, mean_of
from manyview.report.published import Published
from manyview.report.statistics import counted, interval_of_mean

AXES: Mapping[Unit, str] = {
    "frames": "frames of the simulator, action repeat counted",
    "steps": "steps of the agent",
    "updates": "updates",
    "seconds": "seconds since the run began",
}
RETURNS: Mapping[Returns, str] = {
    "evaluations": "return of evaluation",
    "test_levels": "return of evaluation on test levels",
    "episodes": "return of training episodes",
}
# Okabe and Ito's colours, which most people can tell apart; black and grey are left to published figures.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("-", "--", ":", "-.")
MARKERS = ("D", "s", "^", "v", "P", "X")
PANELS_IN_A_ROW = 3
PANEL_INCHES = (6.0, 4.2)
DOTS_PER_INCH = 120
MAX_PANELS = 99
INERT = {"text.parse_math": False, "text.usetex": False, "agg.path.chunksize": 10_000}
"""Names are no formulas and nothing that TeX runs; and a curve of a million points is drawn part by part."""


def draw_curves(
    path: Path,
    groups: Sequence[Group],
    *,
    unit: Unit,
    published: Sequence[Published] = (),
    of: Returns = "evaluations",
) -> None:
    """Write the picture; the file's suffix, such as .png, .svg or .pdf, says which kind.

    A group of three seeds or more is a mean with its 95 % interval and thin single curves; of fewer, the single curves.
    """
    optional("matplotlib", extra="plots")
    from matplotlib import rc_context

    if path.suffix.lower() in ("", ".pgf"):  # the latter would run LaTeX on text of the runs
        raise ValueError(f"{path} cannot be written: expected a file that ends with .png, .svg or .pdf")
    by_task = {task: list(same) for task, same in groupby(groups, key=lambda group: group.task)}
    if len(by_task) > MAX_PANELS:
        raise ValueError(f"{len(by_task)} tasks are too many for one picture: name runs of at most {MAX_PANELS}")
    with rc_context(INERT):
        figure = _figure(by_task, groups, unit=unit, published=published, of=of)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DOTS_PER_INCH)


def _figure(
    by_task: Mapping[str, Sequence[Group]],
    groups: Sequence[Group],
    *,
    unit: Unit,
    published: Sequence[Published],
    of: Returns,
) -> Any:
    from matplotlib.figure import Figure

    columns = min(PANELS_IN_A_ROW, len(by_task))
    rows = -(-len(by_task) // columns)
    # A figure of its own: pyplot would keep it, and choose a window system.
    figure = Figure(figsize=(columns * PANEL_INCHES[0], rows * PANEL_INCHES[1]), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    styles = _styles(groups)
    for axes, (task, same) in zip(panels, by_task.items(), strict=False):
        for group in same:
            _draw_group(axes, group, **styles[group.label])
        _draw_published(axes, [row for row in published if row.task == task])
        _finish(axes, task, unit, of)
    for axes in panels[len(by_task) :]:
        axes.set_visible(False)
    return figure


def _styles(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """A label looks the same in every panel."""
    labels = sorted({group.label for group in groups})
    return {
        label: {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": LINES[number // len(COLOURS) % len(LINES)],
        }
        for number, label in enumerate(labels)
    }


def _draw_group(axes: Any, group: Group, *, color: str, linestyle: str) -> None:
    label = _legend(f"{group.label} ({group.seeds})")
    mean = mean_of(group)
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
    for curve in group.curves:
        axes.plot(curve.x, curve.returns, color=color, linestyle=linestyle, linewidth=0.7, alpha=0.4)
    axes.fill_between(mean.x, *mean.band, color=color, alpha=0.18, linewidth=0)
    axes.plot(mean.x, mean.returns, color=color, linestyle=linestyle, linewidth=2.2, label=label)


def _draw_published(axes: Any, rows: Sequence[Published]) -> None:
    """Points with their 95 % intervals, as far as our curves go, and a dotted line through each method's last."""
    _, end = axes.dataLim.intervalx
    methods = sorted({row.method for row in rows})
    for number, method in enumerate(methods):
        there = sorted((r for r in rows if r.method == method and r.frames <= 1.02 * end), key=lambda r: r.frames)
        if not there:
            continue
        grey = "black" if number % 2 == 0 else "#808080"
        last = float(np.mean(there[-1].returns))
        axes.axhline(last, color=grey, linestyle=":", linewidth=1, zorder=0)
        axes.errorbar(
            [row.frames for row in there],
            [np.mean(row.returns) for row in there],
            yerr=np.transpose([_arms(row.returns) for row in there]),
            color=grey,
            linestyle="none",
            marker=MARKERS[number % len(MARKERS)],
            markersize=6,
            capsize=3,
            linewidth=1,
            zorder=5,
            label=_published_label(there[-1]),
        )


def _published_label(row: Published) -> str:
    views = "" if row.views is None else f"{counted(row.views, 'view')}, "
    return _legend(f"{row.method}, published ({views}{counted(len(row.returns), 'seed')})")


def _legend(label: str) -> str:
    """Return a label that matplotlib shows; one that begins with an underscore it would hide."""
    return f" {label}" if label.startswith("_") else label


def _arms(returns: Sequence[float]) -> tuple[float, float]:
    """How far the interval reaches below and above the mean."""
    if len(returns) < 2:
        return 0.0, 0.0
    mean, (low, high) = float(np.mean(returns)), interval_of_mean(returns)
    return max(0.0, mean - float(low)), max(0.0, float(high) - mean)


def _finish(axes: Any, task: str, unit: Unit, of: Returns) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_title(task)
    axes.set_xlabel(AXES[unit])
    axes.set_ylabel(RETURNS[of])
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8)
