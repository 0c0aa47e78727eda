"""Options of a `PolicyRunner`, apart from the policy and the robot."""

import os
from math import isfinite
from typing import Literal, TypedDict, get_args

from .action_limits import ActionLimits
from .clock import Clock

OnStale = Literal["mask", "hold", "stop"]
"""`mask`: act without the view. `hold`: repeat the last action for a while, then stop. `stop`: stop at once."""
MIN_WATCHDOG_S, WATCHDOG_TICKS = 0.5, 5
"""Default timeout of the watchdog: the greater of these."""


class RunnerOptions(TypedDict, total=False):
    """Keyword arguments of `PolicyRunner`, where they are explained."""

    rate_hz: float
    max_frame_age_s: float
    max_frozen_s: float | None
    on_stale: OnStale
    max_hold_s: float
    limits: ActionLimits
    watchdog_s: float | None
    start_timeout_s: float
    trace: str | os.PathLike[str] | None
    store_frames: bool
    close_timeout_s: float
    clock: Clock


def check_above_zero(**settings: float) -> None:
    """Raise `ValueError` unless every setting is a finite number above 0."""
    for name, value in settings.items():
        if not (isinstance(value, int | float) and isfinite(value) and value > 0):
            raise ValueError(f"invalid {name}: expected a number above 0, got {value!r}")


def check_on_stale(value: str) -> None:
    """Raise `ValueError` unless a value is one of `OnStale`."""
    if value not in get_args(OnStale):
        raise ValueError(f"invalid on_stale: expected {', '.join(get_args(OnStale))}, got {value!r}")


def resolve_max_frozen(max_frozen_s: float | None, *, max_frame_age_s: float) -> float:
    """Return the greatest time with the same bytes; None is the greatest age of a frame."""
    if max_frozen_s is None:
        return max_frame_age_s
    if not max_frozen_s > 0:
        raise ValueError(f"invalid max_frozen_s: expected a time above 0 or math.inf, got {max_frozen_s}")
    return max_frozen_s


def resolve_watchdog(watchdog_s: float | None, *, period_s: float) -> float:
    """Return the timeout of the watchdog; None is 0.5 s, or 5 ticks if that is more."""
    if watchdog_s is None:
        return max(MIN_WATCHDOG_S, WATCHDOG_TICKS * period_s)
    if not watchdog_s > period_s:
        raise ValueError(f"invalid watchdog_s: expected more than a tick of {period_s} s, got {watchdog_s}")
    return watchdog_s
