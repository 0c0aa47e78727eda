"""Picture of camera reports: returns by cameras, value of each camera, returns under faults."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manyview.deploy.camera_value import FAULT_KINDS, CameraReport, Cameras, Returns
from manyview.report.plotting import COLORS, DOTS_PER_INCH, SAFE_RC_PARAMS
from manyview.report.statistics import estimate_episode_mean
from manyview.utils.optional_imports import import_optional
from manyview.utils.output_paths import PLOT_SUFFIXES, check_output_file

COLUMN_INCHES, ROW_INCHES, HEAD_INCHES = 4.6, 0.34, 1.5


def draw_cameras(path: Path, reports: Sequence[CameraReport], titles: Sequence[str]) -> None:
    """Draw one row of panels per report to an image file whose format follows from its suffix.

    Raises ValueError if the suffix is not supported.
    """
    import_optional("matplotlib", extra="plots")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    check_output_file(path, PLOT_SUFFIXES)
    heights = [HEAD_INCHES + ROW_INCHES * len(report.returns) for report in reports]
    with rc_context(SAFE_RC_PARAMS):
        figure = Figure(figsize=(3 * COLUMN_INCHES, sum(heights)), layout="constrained")
        panels = figure.subplots(len(reports), 3, squeeze=False, height_ratios=heights)
        for (subsets, values, faults), report, title in zip(panels, reports, titles, strict=True):
            _draw_subsets(subsets, report, title)
            _draw_values(values, report)
            _draw_faults(faults, report)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DOTS_PER_INCH)


def format_cameras(subset: Cameras, report: CameraReport) -> str:
    """Return the name of a subset."""
    return "all" if subset == report.cameras else " + ".join(subset) or "no camera"


def _draw_subsets(axes: Any, report: CameraReport, title: str) -> None:
    _draw_bars(axes, [format_cameras(subset, report) for subset in report.returns], list(report.returns.values()))
    axes.set_title(f"{title}: return with these cameras", fontsize=10)


def _draw_values(axes: Any, report: CameraReport) -> None:
    values = report.shapley_values
    if values is None:
        values = {camera: report.get_losses(camera) for camera in report.cameras}
        axes.set_title("return lost without the camera", fontsize=10)
    else:
        axes.set_title("value of each camera (Shapley)", fontsize=10)
    _draw_bars(axes, list(values), list(values.values()))


def _draw_bars(axes: Any, names: Sequence[str], values: Sequence[Returns]) -> None:
    """Draw horizontal bars of means with 95 % intervals, the first on top."""
    estimates = [estimate_episode_mean(returns) for returns in values]
    errors = [[one.mean - one.low for one in estimates], [one.high - one.mean for one in estimates]]
    rows = range(len(names))
    axes.barh(rows, [one.mean for one in estimates], xerr=errors, color=COLORS[0], alpha=0.75, capsize=3)
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.grid(visible=True, axis="x", linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_faults(axes: Any, report: CameraReport) -> None:
    if not report.fault_returns:
        axes.set_visible(False)
        return
    means = [[report.fault_returns[camera, kind].mean() for kind in FAULT_KINDS] for camera in report.cameras]
    # From 0 like the bars, so that noise among returns of about -50 does not look like a difference.
    best = max(0.0, report.returns[report.cameras].mean(), *(max(row) for row in means))
    worst = min(0.0, *(min(row) for row in means))
    axes.imshow(means, cmap="cividis", vmin=worst, vmax=best, aspect="auto")
    axes.set_xticks(range(len(FAULT_KINDS)), FAULT_KINDS)
    axes.set_yticks(range(len(report.cameras)), report.cameras)
    middle = (worst + best) / 2
    for row, line in enumerate(means):
        for column, mean in enumerate(line):
            color = "black" if mean > middle else "white"
            axes.text(column, row, f"{mean:.1f}", ha="center", va="center", color=color)
    axes.set_title("return with one faulty camera", fontsize=10)
