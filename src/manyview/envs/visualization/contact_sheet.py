"""Contact sheets of recorded steps."""

from collections.abc import Sequence
from typing import Any, get_args

import gymnasium as gym

from manyview.envs.views import Image, Observation, View, get_views
from manyview.envs.visualization.grid import Row, draw_grid
from manyview.envs.visualization.recording import RecordedStep, record_random_steps
from manyview.envs.wrappers.faults import Fault, FaultInjector, FaultKind

MAX_COLUMNS = 6
"""Maximum number of steps on a sheet, including the first and the last."""


def draw_contact_sheet(
    views: Sequence[View], steps: Sequence[RecordedStep], *, extra_rows: Sequence[Row] = (), title: str = ""
) -> Image:
    """Draw a row per view and a column per step, up to `MAX_COLUMNS`, with `extra_rows` below."""
    columns = subsample_steps(steps, MAX_COLUMNS)
    rows = [Row(format_view_label(view), [step.images[view.name] for step in columns]) for view in views]
    return draw_grid([*rows, *extra_rows], column_labels=[format_step_label(step) for step in columns], title=title)


def format_view_label(view: View) -> str:
    """Return the name of a view and, in further lines, its derivation."""
    if view.derived_from is None:
        return view.name
    derivation = "background removed\nfrom" if view.name.endswith("_foreground") else "derived from"
    return f"{view.name}\n{derivation} {view.derived_from}"


def format_step_label(step: RecordedStep) -> str:
    """Return `step 3, frame 6`, with the reward in a second line."""
    position = f"step {step.step}" + (f", frame {step.frame}" if step.frame != step.step else "")
    if step.reward is None:
        return f"{position}\nreset"
    return f"{position}\nreward {step.reward:.3g}" + (", end" if step.is_last else "")


def subsample_steps(steps: Sequence[RecordedStep], max_count: int) -> list[RecordedStep]:
    """Return at most `max_count` steps, evenly spaced from the first to the last."""
    count = min(max_count, len(steps))
    return [steps[round(index * (len(steps) - 1) / max(1, count - 1))] for index in range(count)]


def render_fault_rows(env: gym.Env[Observation, Any], steps: int, *, seed: int) -> list[Row]:
    """Return a row per fault kind of the first camera.

    The columns are those of a sheet of `steps` steps. The environment must return single frames. The fault starts at
    the second column; a late camera lags one column.
    """
    camera = next(view.name for view in get_views(env) if view.derived_from is None)
    start = max(1, steps // (MAX_COLUMNS - 1))
    rows = []
    for kind in get_args(FaultKind):
        fault = Fault(view=camera, kind=kind, lasts="episode", at_step=start, late_frames=start)
        recorded = subsample_steps(record_random_steps(FaultInjector(env, [fault]), steps, seed=seed), MAX_COLUMNS)
        label = f"late by {start}" if kind == "late" else kind
        rows.append(Row(f"{camera}\n{label}, from step {start}", [step.images[camera] for step in recorded]))
    return rows
