"""Limits of the actions that reach a robot, in the environment's units."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class ActionLimits:
    """Bounds and greatest rate of change of each element; a scalar applies to all, None is no limit."""

    low: ArrayLike | None = None
    high: ArrayLike | None = None
    max_change_per_s: ArrayLike | None = None
    """Greatest change of an element in a second; the first action starts from the safe action."""

    def check(self, safe_action: NDArray[Any]) -> None:
        """Raise `ValueError` unless the limits fit the shape of the safe action and contain it."""
        limits = {"low": self.low, "high": self.high, "max_change_per_s": self.max_change_per_s}
        for name, limit in limits.items():
            if limit is None:
                continue
            if safe_action.dtype.kind != "f":
                raise ValueError(f"invalid limit {name}: discrete actions have no limits, got {limit}. Remove it.")
            values = np.asarray(limit, np.float64)
            if values.shape not in ((), safe_action.shape) or np.isnan(values).any():
                raise ValueError(
                    f"invalid limit {name}: expected a number, or {safe_action.shape} of them as in an action, got "
                    f"{limit}"
                )
            if name == "max_change_per_s" and (values <= 0).any():
                raise ValueError(f"invalid limit {name}: expected values above 0, got {limit}")
        low, high = self._get_bounds()
        if not ((low <= safe_action) & (safe_action <= high)).all():
            raise ValueError(
                f"invalid safe_action: expected values from {self.low} to {self.high}, the limits, got {safe_action}"
            )

    def apply(self, action: NDArray[Any], previous: NDArray[Any], period_s: float) -> NDArray[Any]:
        """Return an action clipped to the bounds, then to the greatest change from `previous` within a period."""
        if self.low is None and self.high is None and self.max_change_per_s is None:
            return action
        low, high = self._get_bounds()
        limited = action.astype(np.float64).clip(low, high)
        if self.max_change_per_s is not None:
            change = np.asarray(self.max_change_per_s, np.float64) * period_s
            limited = limited.clip(previous - change, previous + change)
        # Rounding to the action's type could pass a bound by one bit.
        result: NDArray[Any] = limited.astype(action.dtype).clip(
            _round_toward(np.inf, low, action.dtype), _round_toward(-np.inf, high, action.dtype)
        )
        return result

    def to_plain(self) -> dict[str, Any]:
        """Return the limits as JSON values; None for an element without a limit."""
        limits: dict[str, ArrayLike | None] = vars(self)
        return {name: None if limit is None else _to_plain(limit) for name, limit in limits.items()}

    def _get_bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        return np.asarray(low, np.float64), np.asarray(high, np.float64)


def _round_toward(target: float, values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `values` in `dtype`, each at most one step nearer to `target`, positive or negative infinity."""
    rounded = values.astype(dtype)
    passed = rounded < values if target > 0 else rounded > values
    nearer: NDArray[Any] = np.where(passed, np.nextafter(rounded, dtype.type(target)), rounded)
    return nearer


def _to_plain(limit: ArrayLike) -> Any:
    """Return a limit as numbers for JSON, which has no infinity: None stands for it."""
    values = np.asarray(limit, np.float64).tolist()
    if isinstance(values, list):
        return [value if isfinite(value) else None for value in values]
    return values if isfinite(values) else None
