"""Learning curves: the returns of runs, and which runs differ in nothing but their seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from manyview.report.metrics_file import read_records
from manyview.report.runs import METRICS_FILE, BrokenRunError, convert_read_errors, read_config
from manyview.report.statistics import Interval, bootstrap_interval
from manyview.utils.json_io import is_number
from manyview.utils.text import format_count, sanitize_text

Unit = Literal["frames", "steps", "updates", "seconds"]
"""What a curve is drawn over; every record has all of them."""

ReturnSource = Literal["evaluations", "test_levels", "episodes"]
"""Of evaluations, of those on all levels where a task is trained on some, or of the episodes that were trained on."""

FloatArray = NDArray[np.float64]
MIN_INTERVAL_SEEDS = 3
EPISODE_CURVE_POINTS = 50
"""Of a curve of episodes: each is the mean of those that ended in a part of the run."""

MAX_RETURNS = 1_000_000
"""Of a run. More would take a gigabyte of memory."""
MAX_MEANS = 2_000
"""Of a group. Each takes 10,000 draws."""
MAX_NAME_CHARS = 200
"""Of a setting, with the names of its groups."""

IGNORED_SETTINGS = (
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
    x: FloatArray
    returns: FloatArray


@dataclass(frozen=True, kw_only=True)
class CurveGroup:
    """Runs that differ in nothing but their seed."""

    task: str
    label: str
    """The method, and whatever else tells this group from others of the task."""
    curves: tuple[Curve, ...]

    @property
    def seed_count_text(self) -> str:
        return format_count(len(self.curves), "seed")

    @property
    def duplicate_seeds(self) -> list[int]:
        """Such a run counts twice in the mean."""
        seeds = [curve.seed for curve in self.curves]
        return sorted({seed for seed in seeds if seeds.count(seed) > 1})


@dataclass(frozen=True)
class MeanCurve:
    """Over the seeds of a group, as far as all of them have come."""

    x: FloatArray
    returns: FloatArray
    interval: Interval


def read_curve(path: Path, unit: Unit, source: ReturnSource = "evaluations") -> Curve:
    """The curve of a run's folder; config.json and metrics.jsonl are enough."""
    try:
        config = read_config(path)
        needed = b"" if source == "episodes" else b"evaluation"
        with convert_read_errors(METRICS_FILE):
            run_records = (
                record for record in read_records(path / METRICS_FILE, containing=needed) if is_number(record.get(unit))
            )
            x, returns = (
                _extract_episode_points(run_records, unit)
                if source == "episodes"
                else _extract_evaluation_points(run_records, unit, source)
            )
    except BrokenRunError as error:
        raise BrokenRunError(f"{path}: {error}") from None
    return Curve(
        task=config["task"],
        method=config["method"],
        seed=config["seed"],
        path=path,
        settings=_select_relevant_settings(config, source),
        x=x,
        returns=returns,
    )


def group_curves(curves: Iterable[Curve]) -> list[CurveGroup]:
    """By task and method; runs of one method with other settings are another group, and its label says which."""
    key = _get_task_and_method
    return [
        group
        for (task, method), same in groupby(sorted(curves, key=key), key=key)
        for group in _group_by_settings(task, method, list(same))
    ]


def compute_mean_curve(group: CurveGroup) -> MeanCurve | None:
    """None with too few seeds for an interval, or where their curves do not overlap."""
    curves = group.curves
    if len(curves) < MIN_INTERVAL_SEEDS:
        return None
    start, end = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    x = np.unique(np.concatenate([curve.x for curve in curves]))
    x = x[(x >= start) & (x <= end)]
    if not len(x):
        return None
    x = x[np.linspace(0, len(x) - 1, min(len(x), MAX_MEANS)).round().astype(int)]
    rows = np.stack([np.interp(x, curve.x, curve.returns) for curve in curves])
    return MeanCurve(x, rows.mean(0), bootstrap_interval(rows))


def _extract_evaluation_points(
    run_records: Iterable[Mapping[str, Any]], unit: Unit, source: ReturnSource
) -> tuple[FloatArray, FloatArray]:
    name = "test_return" if source == "test_levels" else "return"
    points = (
        (record[unit], record[name])
        for record in run_records
        if record["kind"] == "evaluation" and is_number(record.get(name))
    )
    x, returns = _to_columns(list(islice(points, MAX_RETURNS + 1)))
    # A run that went on from an earlier checkpoint has evaluated some points twice: the later one is what it led to.
    x, last = np.unique(x[::-1], return_index=True)
    return x, returns[::-1][last]


def _extract_episode_points(run_records: Iterable[Mapping[str, Any]], unit: Unit) -> tuple[FloatArray, FloatArray]:
    points, max_x = list[tuple[float, float]](), 0.0
    for record in run_records:
        max_x = max(max_x, record[unit])
        if record["kind"] == "resume":  # what came after that checkpoint was played again
            while points and points[-1][0] > record[unit]:
                points.pop()
        elif record["kind"] == "episode" and is_number(record.get("return")) and len(points) <= MAX_RETURNS:
            points.append((record[unit], record["return"]))
    x, returns = _to_columns(points)
    edges = np.linspace(0, max_x, EPISODE_CURVE_POINTS + 1)[1:]
    bins = np.searchsorted(edges, x)  # each up to its edge, which it is drawn at
    used_bins = np.unique(bins)
    return edges[used_bins], np.asarray([returns[bins == bin_index].mean() for bin_index in used_bins], np.float64)


def _to_columns(points: Sequence[tuple[float, float]]) -> FloatArray:
    if len(points) > MAX_RETURNS:
        raise BrokenRunError(f"{METRICS_FILE} has more than {MAX_RETURNS:,} returns")
    return np.asarray(points, np.float64).reshape(-1, 2).T


def _group_by_settings(task: str, method: str, curves: Sequence[Curve]) -> list[CurveGroup]:
    # Another version may have other settings: only those that all have are compared.
    common = set.intersection(*(set(curve.settings) for curve in curves))
    differing = sorted(name for name in common if len({repr(curve.settings[name]) for curve in curves}) > 1)
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        label = ", ".join([method, *(f"{name} {curve.settings[name]}" for name in differing)])
        groups.setdefault(label, []).append(curve)
    return [
        CurveGroup(task=task, label=sanitize_text(label), curves=tuple(sorted(same, key=lambda curve: curve.seed)))
        for label, same in sorted(groups.items())
    ]


def _get_task_and_method(curve: Curve) -> tuple[str, str]:
    return curve.task, curve.method


def _select_relevant_settings(config: Mapping[str, Any], source: ReturnSource) -> dict[str, Any]:
    """Of the settings those of the parts that the method has."""
    parts = config["method"].split("+")
    data = "rollout" if parts[0] == "ppo" else "replay"
    bonus = ["bonus"] if {"mem", "re3", "ride"} & set(parts) else []
    encoder = [] if {"mem", "curl", "none"} & set(parts) else ["none"]  # the encoder where the method brings none
    settings: dict[str, Any] = {}
    for branch in ("env", "schedule", data, "scale", *bonus, *dict.fromkeys(parts), *encoder):
        _flatten(config.get(branch, {}), branch, settings)
    single = (("machine", "precision"), *([("evaluation", "episodes")] if source != "episodes" else []))
    for branch, name in single:
        group = config.get(branch)
        settings[f"{branch}.{name}"] = group.get(name) if isinstance(group, Mapping) else None
    return {name: value for name, value in settings.items() if name not in IGNORED_SETTINGS}


def _flatten(value: Any, name: str, flat: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _flatten(inner, f"{name}.{key}"[:MAX_NAME_CHARS], flat)
    else:
        flat[name] = value
