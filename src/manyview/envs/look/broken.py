"""What a camera shows when it fails."""

from typing import Any, get_args

import gymnasium as gym

from manyview.envs.layers.faults import Fault, FaultInjector, FaultKind
from manyview.envs.look.grid import Row
from manyview.envs.look.sheet import MAX_COLUMNS, subsample_steps
from manyview.envs.look.watch import record_random_steps
from manyview.envs.views import Observation, get_views


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
