"""What a camera shows when it fails."""

from typing import Any, get_args

import gymnasium as gym

from manyview.envs.layers.faults import Fault, Faults, Kind
from manyview.envs.look.grid import Row
from manyview.envs.look.sheet import COLUMNS, spread
from manyview.envs.look.watch import watch
from manyview.envs.views import Observation, views_of


def broken_rows(env: gym.Env[Observation, Any], steps: int, *, seed: int) -> list[Row]:
    """A row for each way in which the first camera can fail, at the moments that a sheet of so many steps shows.

    The environment must give single frames. The fault begins at the second column; a late camera is late by one column.
    """
    camera = next(view.name for view in views_of(env) if view.derived_from is None)
    begin = max(1, steps // (COLUMNS - 1))
    rows = []
    for kind in get_args(Kind):
        fault = Fault(view=camera, kind=kind, lasts="episode", at_step=begin, late_frames=begin)
        moments = spread(watch(Faults(env, [fault]), steps, seed=seed), COLUMNS)
        how = f"late by {begin}" if kind == "late" else kind
        rows.append(Row(f"{camera}\n{how}, from step {begin}", [moment.pictures[camera] for moment in moments]))
    return rows
