"""Learning curves: returns of runs, grouped by runs that differ only in their seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from manyview.report.metrics_file import read_records
from manyview.report.runs import METRICS_FILE, BrokenRunError, convert_read_errors, read_config
from manyview.report.statistics import Interval, bootstrap_interval
from manyview.utils.json_io import is_number
from manyview.utils.text import format_count, sanitize_text

Unit = Literal["frames", "steps", "updates", "seconds"]
"""Unit of the x axis; every record has all of them."""

ReturnSource = Literal["evaluations", "test_levels", "episodes"]
"""Source of returns: evaluations, evaluations on all levels for tasks that train on some, or training episodes."""

FloatArray = NDArray[np.float64]
MIN_INTERVAL_SEEDS = 3
"""Smallest number of seeds with an interval of the mean."""
EPISODE_CURVE_POINTS = 50
"""Points of a curve of training episodes, each the mean over the episodes that ended in one part of the run."""

MAX_RETURNS = 1_000_000
"""Limit of returns per run; more would take a gigabyte of memory."""
MAX_MEANS = 2_000
"""Limit of points per mean curve; each takes 10,000 bootstrap samples."""
MAX_NAME_CHARS = 200
"""Limit of the dotted name of a setting, in characters."""

IGNORED_SETTINGS = (
    "schedule.frames",
    "replay.directory",
    "replay.prefetch",
    "scale.deadline_s",
    "scale.start_deadline_s",
)
"""Settings that may differ within a group: length of the run, storage of the replay buffer, deadlines."""
PATH_SETTINGS = ("replay.directory", "replay.demonstrations", "schedule.initial_run")
"""Settings that hold a path of the machine, of which only the name is shown."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Returns of one run over a unit."""

    task: str
    method: str
    seed: int
    path: Path
    settings: Mapping[str, Any]
    """Settings that can change the curve, by dotted name."""
    x: FloatArray  # [points], increasing
    returns: FloatArray  # [points]


@dataclass(frozen=True, kw_only=True)
class CurveGroup:
    """Runs that differ only in their seed."""

    task: str
    label: str
    """Method, and the settings that differ from other groups of the task and method."""
    curves: tuple[Curve, ...]

    @property
    def seed_count_text(self) -> str:
        return format_count(len(self.curves), "seed")

    @property
    def duplicate_seeds(self) -> list[int]:
        """Seeds of several runs, which have more weight in the mean."""
        seeds = [curve.seed for curve in self.curves]
        return sorted({seed for seed in seeds if seeds.count(seed) > 1})


@dataclass(frozen=True)
class MeanCurve:
    """Mean over the seeds of a group, within the range that all of them cover."""

    x: FloatArray  # [points]
    returns: FloatArray  # [points]
    interval: Interval
    """95 % bootstrap interval of the mean at each point."""
    std: FloatArray  # [points], over the seeds


def read_curve(path: Path, unit: Unit, source: ReturnSource = "evaluations") -> Curve:
    """Read the curve of a run directory, for which config.json and metrics.jsonl are enough.

    Raises:
        BrokenRunError: A file is missing or invalid.

    """
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
    """Group curves by task, method and settings; labels name the settings that differ."""
    key = _get_task_and_method
    return [
        group
        for (task, method), matching in groupby(sorted(curves, key=key), key=key)
        for group in _group_by_settings(task, method, list(matching))
    ]


def compute_mean_curve(group: CurveGroup) -> MeanCurve | None:
    """Return the mean curve with its interval, or None with fewer than 3 seeds or without a common range."""
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
    return MeanCurve(x, rows.mean(0), bootstrap_interval(rows), rows.std(0))


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
    # A run resumed from an earlier checkpoint has evaluated some points twice: the later result is valid.
    x, last = np.unique(x[::-1], return_index=True)
    return x, returns[::-1][last]


def _extract_episode_points(run_records: Iterable[Mapping[str, Any]], unit: Unit) -> tuple[FloatArray, FloatArray]:
    points, max_x = list[tuple[float, float]](), 0.0
    for record in run_records:
        max_x = max(max_x, record[unit])
        if record["kind"] == "resume":  # episodes after that checkpoint were played again
            while points and points[-1][0] > record[unit]:
                points.pop()
        elif record["kind"] == "episode" and is_number(record.get("return")) and len(points) <= MAX_RETURNS:
            points.append((record[unit], record["return"]))
    x, returns = _to_columns(points)
    edges = np.linspace(0, max_x, EPISODE_CURVE_POINTS + 1)[1:]
    bins = np.searchsorted(edges, x)  # a bin is plotted at its right edge
    used_bins = np.unique(bins)
    return edges[used_bins], np.asarray([returns[bins == bin_index].mean() for bin_index in used_bins], np.float64)


def _to_columns(points: Sequence[tuple[float, float]]) -> FloatArray:
    if len(points) > MAX_RETURNS:
        raise BrokenRunError(f"{METRICS_FILE} has too many returns: expected at most {MAX_RETURNS:,}")
    return np.asarray(points, np.float64).reshape(-1, 2).T


def _group_by_settings(task: str, method: str, curves: Sequence[Curve]) -> list[CurveGroup]:
    # Other versions may have other settings: only the common ones are compared.
    common = set.intersection(*(set(curve.settings) for curve in curves))
    differing = sorted(name for name in common if len({repr(curve.settings[name]) for curve in curves}) > 1)
    groups: dict[tuple[str, ...], list[Curve]] = {}
    for curve in curves:
        groups.setdefault(tuple(str(curve.settings[name]) for name in differing), []).append(curve)
    by_label: dict[str, list[list[Curve]]] = {}
    for _, members in sorted(groups.items()):
        values = (f"{name} {hide_path(name, members[0].settings[name])}" for name in differing)
        by_label.setdefault(sanitize_text(", ".join([method, *values])), []).append(members)
    return [
        CurveGroup(
            task=task,
            label=label if number == 1 else f"{label} ({number})",  # paths of the same name
            curves=tuple(sorted(members, key=lambda curve: curve.seed)),
        )
        for label, equally_labeled in sorted(by_label.items())
        for number, members in enumerate(equally_labeled, 1)
    ]


def _get_task_and_method(curve: Curve) -> tuple[str, str]:
    return curve.task, curve.method


def _select_relevant_settings(config: Mapping[str, Any], source: ReturnSource) -> dict[str, Any]:
    """Return the settings of the parts that the method uses, by dotted name."""
    data = "rollout" if config["method"].startswith("ppo+") else "replay"
    settings: dict[str, Any] = {}
    for branch in ("env", "schedule", data, "scale", "agent", "representation", "bonus"):
        flatten_settings(config.get(branch, {}), settings, name=branch)
    single = (("compute", "precision"), *([("evaluation", "episodes")] if source != "episodes" else []))
    for branch, name in single:
        group = config.get(branch)
        settings[f"{branch}.{name}"] = group.get(name) if isinstance(group, Mapping) else None
    return {name: value for name, value in settings.items() if name not in IGNORED_SETTINGS}


def hide_path(name: str, value: Any) -> Any:
    """Return the value of a setting, of a path only its name."""
    return PurePath(value).name if name in PATH_SETTINGS and isinstance(value, str) else value


def flatten_settings(value: Any, flat: dict[str, Any], *, name: str = "") -> None:
    """Add the leaves of nested settings to `flat` by dotted name of at most `MAX_NAME_CHARS` characters."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            flatten_settings(inner, flat, name=(f"{name}.{key}" if name else str(key))[:MAX_NAME_CHARS])
    else:
        flat[name] = value
