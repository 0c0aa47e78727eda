"""What was watched, as a contact sheet or as the frames of a video."""

from collections.abc import Sequence
from typing import Any, get_args

import gymnasium as gym

from manyview.envs.views import Image, Observation, View, get_views
from manyview.envs.visualization.grid import Row, draw_grid
from manyview.envs.visualization.recording import RecordedStep, record_random_steps
from manyview.envs.wrappers.faults import Fault, FaultInjector, FaultKind

MAX_COLUMNS = 6
"""A sheet shows at most so many moments, the first and the last among them."""


def draw_contact_sheet(
    views: Sequence[View], steps: Sequence[RecordedStep], *, extra_rows: Sequence[Row] = (), title: str = ""
) -> Image:
    """A row for each view, a column for each moment, or for some if there are many; `further` rows below."""
    shown = subsample_steps(steps, MAX_COLUMNS)
    rows = [Row(format_view_label(view), [moment.images[view.name] for moment in shown]) for view in views]
    return draw_grid([*rows, *extra_rows], column_labels=[format_step_label(moment) for moment in shown], title=title)


def format_view_label(view: View) -> str:
    if view.derived_from is None:
        return view.name
    how = "background removed\nfrom" if view.name.endswith("_foreground") else "made of"
    return f"{view.name}\n{how} {view.derived_from}"


def format_step_label(step: RecordedStep) -> str:
    """`step 3, frame 6`, and its reward in a second line."""
    when = f"step {step.step}" + (f", frame {step.frame}" if step.frame != step.step else "")
    if step.reward is None:
        return f"{when}\nreset"
    return f"{when}\nreward {step.reward:.3g}" + (", end" if step.is_last else "")


def subsample_steps(steps: Sequence[RecordedStep], max_count: int) -> list[RecordedStep]:
    """At most so many of them, evenly spaced, from the first to the last."""
    count = min(max_count, len(steps))
    return [steps[round(index * (len(steps) - 1) / max(1, count - 1))] for index in range(count)]


def render_fault_rows(env: gym.Env[Observation, Any], steps: int, *, seed: int) -> list[Row]:
    """A row for each way in which the first camera can fail, at the moments that a sheet of so many steps shows.

    The environment must give single frames. The fault begins at the second column; a late camera is late by one column.
    """
    camera = next(view.name for view in get_views(env) if view.derived_from is None)
    start = max(1, steps // (MAX_COLUMNS - 1))
    rows = []
    for kind in get_args(FaultKind):
        fault = Fault(view=camera, kind=kind, lasts="episode", at_step=start, late_frames=start)
        moments = subsample_steps(record_random_steps(FaultInjector(env, [fault]), steps, seed=seed), MAX_COLUMNS)
        how = f"late by {start}" if kind == "late" else kind
        rows.append(Row(f"{camera}\n{how}, from step {start}", [moment.images[camera] for moment in moments]))
    return rows
