"""Learning curves: the evaluations of runs, and which runs differ in nothing but their seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from manyview.envs.suite import Levels
from manyview.report.lines import records
from manyview.report.runs import METRICS, BrokenRunError, read_config
from manyview.report.statistics import Interval, counted, interval_of_mean

Unit = Literal["frames", "steps", "updates", "seconds"]
"""What a curve is drawn over; every record has all of them."""

Floats = NDArray[np.float64]
SEEDS_FOR_A_BAND = 3

CHANGES_NO_CURVE = (
    "schedule.frames",
    "replay.folder",
    "replay.prefetch",
    "scale.deadline_s",
    "scale.start_deadline_s",
)
"""Settings that may differ between runs of one group: how long a run was, where its replay lay, who was waited for."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The evaluations of one run."""

    task: str
    method: str
    seed: int
    path: Path
    settings: Mapping[str, Any]
    """All that can change the curve, by dotted names."""
    x: Floats
    returns: Floats


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ in nothing but their seed."""

    task: str
    label: str
    """The method, and whatever else tells this group from others of the task."""
    curves: tuple[Curve, ...]

    @property
    def seeds(self) -> str:
        return counted(len(self.curves), "seed")

    @property
    def seeds_met_again(self) -> list[int]:
        """Such a run counts twice in the mean."""
        seeds = [curve.seed for curve in self.curves]
        return sorted({seed for seed in seeds if seeds.count(seed) > 1})


@dataclass(frozen=True)
class Mean:
    """Over the seeds of a group, as far as all of them have come."""

    x: Floats
    returns: Floats
    band: Interval


def read_curve(path: Path, unit: Unit, levels: Levels = "train") -> Curve:
    """The curve of a run's folder; config.json and metrics.jsonl are enough.

    With `test` that of the evaluations on all levels, where a task has some to train on and others to test.
    """
    name = "return" if levels == "train" else f"{levels}_return"
    try:
        config = read_config(path)
        if not (path / METRICS).is_file():
            raise BrokenRunError(f"there is no {METRICS}")
        points = [
            (record[unit], record[name])
            for record in records(path / METRICS)
            if record["kind"] == "evaluation" and _is_number(record.get(unit)) and _is_number(record.get(name))
        ]
    except BrokenRunError as error:
        raise BrokenRunError(f"{path}: {error}") from None
    x, returns = np.asarray(points, np.float64).reshape(-1, 2).T
    # A run that went on from an earlier checkpoint has evaluated some points twice: the later one is what it led to.
    x, last = np.unique(x[::-1], return_index=True)
    return Curve(
        task=config["task"],
        method=config["method"],
        seed=config["seed"],
        path=path,
        settings=_that_matter(config),
        x=x,
        returns=returns[::-1][last],
    )


def grouped(curves: Iterable[Curve]) -> list[Group]:
    """By task and method; runs of one method with other settings are another group, and its label says which."""
    kind = _task_and_method
    return [
        group
        for (task, method), same in groupby(sorted(curves, key=kind), key=kind)
        for group in _by_settings(task, method, list(same))
    ]


def mean_of(group: Group) -> Mean | None:
    """None with too few seeds for an interval, or where their curves do not overlap."""
    curves = group.curves
    if len(curves) < SEEDS_FOR_A_BAND:
        return None
    begin, end = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    x = np.unique(np.concatenate([curve.x for curve in curves]))
    x = x[(x >= begin) & (x <= end)]
    if not len(x):
        return None
    rows = np.stack([np.interp(x, curve.x, curve.returns) for curve in curves])
    return Mean(x, rows.mean(0), interval_of_mean(rows))


def _by_settings(task: str, method: str, curves: Sequence[Curve]) -> list[Group]:
    # Another version may have other settings: only those that all have are compared.
    common = set.intersection(*(set(curve.settings) for curve in curves))
    differ = sorted(name for name in common if len({repr(curve.settings[name]) for curve in curves}) > 1)
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        label = ", ".join([method, *(f"{name} {curve.settings[name]}" for name in differ)])
        groups.setdefault(label, []).append(curve)
    return [
        Group(task=task, label=label, curves=tuple(sorted(same, key=lambda curve: curve.seed)))
        for label, same in sorted(groups.items())
    ]


def _task_and_method(curve: Curve) -> tuple[str, str]:
    return curve.task, curve.method


def _that_matter(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of the settings those of the parts that the method has."""
    parts = config["method"].split("+")
    data = "rollout" if parts[0] == "ppo" else "replay"
    bonus = ["bonus"] if {"mem", "re3", "ride"} & set(parts) else []
    plain = [] if {"mem", "curl", "none"} & set(parts) else ["none"]  # the encoder where the method brings none
    found: dict[str, Any] = {}
    for branch in ("env", "schedule", data, "scale", *bonus, *parts, *plain):
        _flatten(config.get(branch, {}), branch, found)
    _flatten(config.get("machine", {}).get("precision"), "machine.precision", found)
    _flatten(config.get("evaluation", {}).get("episodes"), "evaluation.episodes", found)
    return {name: value for name, value in found.items() if name not in CHANGES_NO_CURVE}


def _flatten(value: Any, name: str, into: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _flatten(inner, f"{name}.{key}", into)
    else:
        into[name] = value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
