"""Learning curves: the returns of runs, and which runs differ in nothing but their seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from manyview.report.lines import records
from manyview.report.runs import METRICS, BrokenRunError, broken_if_unreadable, read_config
from manyview.report.statistics import Interval, counted, interval_of_mean
from manyview.utils.json_io import is_number
from manyview.utils.text import printable

Unit = Literal["frames", "steps", "updates", "seconds"]
"""What a curve is drawn over; every record has all of them."""

Returns = Literal["evaluations", "test_levels", "episodes"]
"""Of evaluations, of those on all levels where a task is trained on some, or of the episodes that were trained on."""

Floats = NDArray[np.float64]
SEEDS_FOR_A_BAND = 3
POINTS = 50
"""Of a curve of episodes: each is the mean of those that ended in a part of the run."""

MAX_RETURNS = 1_000_000
"""Of a run. More would take a gigabyte of memory."""
MAX_MEANS = 2_000
"""Of a group. Each takes 10,000 draws."""
MAX_NAME_CHARS = 200
"""Of a setting, with the names of its groups."""

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
    """The returns of one run."""

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


def read_curve(path: Path, unit: Unit, of: Returns = "evaluations") -> Curve:
    """The curve of a run's folder; config.json and metrics.jsonl are enough."""
    try:
        config = read_config(path)
        needed = b"" if of == "episodes" else b"evaluation"
        with broken_if_unreadable(METRICS):
            told = (record for record in records(path / METRICS, containing=needed) if is_number(record.get(unit)))
            x, returns = _of_episodes(told, unit) if of == "episodes" else _of_evaluations(told, unit, of)
    except BrokenRunError as error:
        raise BrokenRunError(f"{path}: {error}") from None
    return Curve(
        task=config["task"],
        method=config["method"],
        seed=config["seed"],
        path=path,
        settings=_that_matter(config, of),
        x=x,
        returns=returns,
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
    x = x[np.linspace(0, len(x) - 1, min(len(x), MAX_MEANS)).round().astype(int)]
    rows = np.stack([np.interp(x, curve.x, curve.returns) for curve in curves])
    return Mean(x, rows.mean(0), interval_of_mean(rows))


def _of_evaluations(told: Iterable[Mapping[str, Any]], unit: Unit, of: Returns) -> tuple[Floats, Floats]:
    name = "test_return" if of == "test_levels" else "return"
    points = (
        (record[unit], record[name])
        for record in told
        if record["kind"] == "evaluation" and is_number(record.get(name))
    )
    x, returns = _columns(list(islice(points, MAX_RETURNS + 1)))
    # A run that went on from an earlier checkpoint has evaluated some points twice: the later one is what it led to.
    x, last = np.unique(x[::-1], return_index=True)
    return x, returns[::-1][last]


def _of_episodes(told: Iterable[Mapping[str, Any]], unit: Unit) -> tuple[Floats, Floats]:
    ended, most = list[tuple[float, float]](), 0.0
    for record in told:
        most = max(most, record[unit])
        if record["kind"] == "resume":  # what came after that checkpoint was played again
            while ended and ended[-1][0] > record[unit]:
                ended.pop()
        elif record["kind"] == "episode" and is_number(record.get("return")) and len(ended) <= MAX_RETURNS:
            ended.append((record[unit], record["return"]))
    x, returns = _columns(ended)
    edges = np.linspace(0, most, POINTS + 1)[1:]
    part = np.searchsorted(edges, x)  # each up to its edge, which it is drawn at
    parts = np.unique(part)
    return edges[parts], np.asarray([returns[part == one].mean() for one in parts], np.float64)


def _columns(points: Sequence[tuple[float, float]]) -> Floats:
    if len(points) > MAX_RETURNS:
        raise BrokenRunError(f"{METRICS} has more than {MAX_RETURNS:,} returns")
    return np.asarray(points, np.float64).reshape(-1, 2).T


def _by_settings(task: str, method: str, curves: Sequence[Curve]) -> list[Group]:
    # Another version may have other settings: only those that all have are compared.
    common = set.intersection(*(set(curve.settings) for curve in curves))
    differ = sorted(name for name in common if len({repr(curve.settings[name]) for curve in curves}) > 1)
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        label = ", ".join([method, *(f"{name} {curve.settings[name]}" for name in differ)])
        groups.setdefault(label, []).append(curve)
    return [
        Group(task=task, label=printable(label), curves=tuple(sorted(same, key=lambda curve: curve.seed)))
        for label, same in sorted(groups.items())
    ]


def _task_and_method(curve: Curve) -> tuple[str, str]:
    return curve.task, curve.method


def _that_matter(config: Mapping[str, Any], of: Returns) -> dict[str, Any]:
    """Of the settings those of the parts that the method has."""
    parts = config["method"].split("+")
    data = "rollout" if parts[0] == "ppo" else "replay"
    bonus = ["bonus"] if {"mem", "re3", "ride"} & set(parts) else []
    plain = [] if {"mem", "curl", "none"} & set(parts) else ["none"]  # the encoder where the method brings none
    found: dict[str, Any] = {}
    for branch in ("env", "schedule", data, "scale", *bonus, *dict.fromkeys(parts), *plain):
        _flatten(config.get(branch, {}), branch, found)
    single = (("machine", "precision"), *([("evaluation", "episodes")] if of != "episodes" else []))
    for branch, name in single:
        group = config.get(branch)
        found[f"{branch}.{name}"] = group.get(name) if isinstance(group, Mapping) else None
    return {name: value for name, value in found.items() if name not in CHANGES_NO_CURVE}


def _flatten(value: Any, name: str, into: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _flatten(inner, f"{name}.{key}"[:MAX_NAME_CHARS], into)
    else:
        into[name] = value
