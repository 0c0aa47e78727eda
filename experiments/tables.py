"""Tidy tables of finished studies: one row per measured value.

    python -m experiments.tables dmc                       # print the returns of a study, by variant
    python -m experiments.tables dmc --metric value        # print the last value of another metric

A study is `results/<study>/table.csv.gz` with the columns of `Row`, and `configs/<variant>.json` beside it with the
settings of each variant by dotted name; those that a task and method have instead are in a group of their own. A
finished run adds its rows once, by `append_run`.
"""

import argparse
import csv
import fcntl
import gzip
import io
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyview.config.method import format_method, parse_method
from manyview.config.overrides import NAME
from manyview.config.presets import PARTS
from manyview.methods import AGENTS
from manyview.report.metrics_file import read_records
from manyview.report.runs import METRICS_FILE, read_config
from manyview.report.statistics import bootstrap_interval
from manyview.training.run_dir import RunDir
from manyview.utils.atomic_io import write_atomic

RESULTS = Path(__file__).parents[1] / "results"
TABLE_FILE, CONFIGS_DIR = "table.csv.gz", "configs"
TRAINING_POINTS = 50
"""Training episodes are averaged over this many equal parts of a run, as `manyview plot --of episodes` does."""
MIN_INTERVAL_SEEDS = 3
IGNORED_SETTINGS = ("schedule.frames", "evaluation.video", "replay.directory", "replay.prefetch", "compute.threads")
"""Settings that cannot change a curve, and the length of a run, which its rows show."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Row:
    """One value of one metric of one run."""

    study: str
    variant: str
    """Name of the run's settings in `configs/<variant>.json`; an empty one is `settings`."""
    task: str
    agent: str
    representation: str
    bonus: str
    views: str
    """Names joined by `+`, such as `side+back`."""
    seed: int
    frames: float
    """Simulator frames at which the value was measured; updates in studies on recorded frames."""
    wall_time_s: float | None
    metric: str
    value: float
    commit: str


COLUMNS = tuple(field.name for field in fields(Row))
RunKey = tuple[str, str, str, str, str, int]
SCORED_EVALUATIONS = 3


@dataclass(frozen=True)
class TableRun:
    """The rows of one run."""

    rows: tuple[Row, ...]

    @property
    def key(self) -> RunKey:
        return _key(self.rows[0])

    @property
    def variant(self) -> str:
        return self.rows[0].variant

    @property
    def task(self) -> str:
        return self.rows[0].task

    @property
    def method(self) -> str:
        return format_method(self.rows[0].agent, self.rows[0].representation, self.rows[0].bonus)

    @property
    def seed(self) -> int:
        return self.rows[0].seed

    @cached_property
    def metrics(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Frames and values of each metric, in the order of the table."""
        points: dict[str, list[tuple[float, float]]] = {}
        for row in self.rows:
            points.setdefault(row.metric, []).append((row.frames, row.value))
        return {name: (pairs[:, 0], pairs[:, 1]) for name, pairs in ((n, np.array(p)) for n, p in points.items())}

    def series(self, metric: str) -> tuple[FloatArray, FloatArray]:
        """Return frames and values of a metric; empty arrays if the run has none of it."""
        return self.metrics.get(metric, (np.zeros(0), np.zeros(0)))

    @property
    def score(self) -> float:
        """Mean return of the last three evaluations, the primary measure of the studies."""
        return float(self.series("return")[1][-SCORED_EVALUATIONS:].mean())

    @property
    def minutes(self) -> float:
        """Wall-clock time of the run. Raises ValueError if the table has none."""
        return max(row.wall_time_s for row in self.rows if row.wall_time_s is not None) / 60

    def last(self, metric: str) -> float:
        """Return the last value of a metric. Raises KeyError if the run has none of it."""
        return float(self.metrics[metric][1][-1])


def name_arm(method: str, variant: str) -> str:
    """Return an arm as the tables of the docs name it."""
    return f"`{method}`, {variant}" if variant else f"`{method}`"


def read_table(study: str, *, results: Path = RESULTS) -> list[Row]:
    """Return the rows of a study in the order they were added; none if the study has no table."""
    path = results / study / TABLE_FILE
    if not path.exists():
        return []
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    if tuple(header) != COLUMNS:
        raise ValueError(f"{path} has other columns: expected {', '.join(COLUMNS)}, got {', '.join(header)}")
    return [_parse(line) for line in lines]


def read_runs(study: str, *, results: Path = RESULTS) -> list[TableRun]:
    """Return the runs of a study in the order they were added."""
    rows: dict[RunKey, list[Row]] = {}
    for row in read_table(study, results=results):
        rows.setdefault(_key(row), []).append(row)
    return [TableRun(tuple(found)) for found in rows.values()]


def read_settings(run: TableRun, *, results: Path = RESULTS) -> dict[str, Any]:
    """Return the settings of a run by dotted name; empty if none were kept."""
    first = run.rows[0]
    stored = _read_stored_settings(first.study, first.variant, results)
    common = {name: value for name, value in stored.items() if not isinstance(value, Mapping)}
    own: dict[str, Any] = stored.get(_name_cell(first), {})
    return common | own


def _read_stored_settings(study: str, variant: str, results: Path) -> dict[str, Any]:
    path = _config_path(study, variant, results)
    settings: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return settings


def append_run(
    study: str,
    run_dir: Path,
    variant: str,
    *,
    train_metrics: Collection[str] = (),
    final: Mapping[str, float] | None = None,
    further: Iterable["Value"] = (),
    results: Path = RESULTS,
) -> list[Row]:
    """Add a run to the table of a study and return its rows.

    Stored are the returns of evaluations (`return`, `test_return`), of training episodes (mean `training_return`,
    `training_episodes` and how many of them were `rewarded_episodes`, in 50 equal parts of the run), the training
    metrics named by `train_metrics` (`std` stands for `std/VIEW` of every view, `healthy` is 1 or 0 by the verdict of
    the diagnostics), the values `final`, at the last frame, and `further` ones. Raises ValueError if the table has the
    run already, or if the variant has runs with other settings.
    """
    config, manifest = read_config(run_dir), RunDir(run_dir).read_manifest()
    records = _records_of_run(run_dir)
    values = [*_evaluations(records), *_training_episodes(records), *_train_values(records, train_metrics)]
    end = records[-1]
    values += [(end["frames"], end["seconds"], name, value) for name, value in (final or {}).items()]
    values += further
    agent, representation, bonus = parse_method(config["method"])
    rows = [
        Row(
            *(study, variant, config["task"], agent, representation, bonus, "+".join(manifest["views"])),
            *(config["seed"], float(frames), seconds, metric, float(value), manifest.get("commit") or ""),
        )
        for frames, seconds, metric, value in values
    ]
    append_rows(study, rows, {variant: select_settings(config)}, results=results)
    return rows


def append_rows(
    study: str, rows: Sequence[Row], settings: Mapping[str, Mapping[str, Any]], *, results: Path = RESULTS
) -> None:
    """Add the rows of whole runs to the table of a study, and the settings of their variants by dotted name.

    Raises ValueError if the table has one of the runs already, or if a variant has other settings for runs of the same
    task and method.
    """
    folder = results / study
    (folder / CONFIGS_DIR).mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        table = read_table(study, results=results)
        for variant, task, *method, seed in {_key(row) for row in rows} & {_key(row) for row in table}:
            raise ValueError(
                f"{study} has this run already: variant {variant}, {task}, {'/'.join(map(str, method))}, seed {seed}. "
                "Use another variant."
            )
        merged: dict[str, dict[str, Any]] = {}
        for variant, new in settings.items():
            (cell,) = {_name_cell(row) for row in rows if row.variant == variant}
            is_known = any(row.variant == variant and _name_cell(row) == cell for row in table)
            stored = _read_stored_settings(study, variant, results)
            merged[variant] = _merge_settings(
                stored, new, cell, where=f"variant {variant} of {study}", is_known=is_known
            )
        for variant, values in merged.items():
            text = json.dumps(dict(sorted(values.items())), indent=1) + "\n"
            write_atomic(_config_path(study, variant, results), [text.encode()])
        write_atomic(folder / TABLE_FILE, [_compress([*table, *rows])])


def select_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run config that can change a curve, by dotted name.

    Those of a part are named as in presets, such as `bonus.mem.k`: a variant has runs of several methods. Left out are
    task, method and seed, which are columns, and groups that the run does not use.
    """
    is_on_policy = AGENTS[config["agent"][NAME]].data == ("rollout",)
    unused = {"task", "method", "seed", "logging", "replay" if is_on_policy else "rollout"}
    used = {name: value for name, value in config.items() if name not in unused}
    for kind in PARTS:
        settings = dict(used[kind])
        used[kind] = {settings.pop(NAME): settings}
    flat = flatten(used)
    return {name: value for name, value in flat.items() if name not in IGNORED_SETTINGS}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def format_table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body))


def format_mean(values: Sequence[float], *, digits: int = 0) -> str:
    """Return `mean (low to high)` with the 95 % bootstrap interval; the mean alone of fewer than three values."""
    mean = _round(np.mean(values), digits)
    if len(values) < MIN_INTERVAL_SEEDS:
        return mean
    low, high = (_round(end, digits) for end in bootstrap_interval(values))
    return f"{mean} ({low} to {high})"


def summarize(runs: Iterable[TableRun], metric: str) -> Iterator[tuple[str, ...]]:
    """Yield task, variant, method, seeds, frames, last value of each seed and their mean, for each group of seeds."""
    groups: dict[tuple[str, str, str], list[TableRun]] = {}
    for run in runs:
        if metric in run.metrics:
            groups.setdefault((run.task, run.variant, run.method), []).append(run)
    for (task, variant, method), seeds in groups.items():
        seeds.sort(key=lambda run: run.seed)
        frames = max(run.series(metric)[0][-1] for run in seeds)
        values = [run.last(metric) for run in seeds]
        each = ", ".join(f"{value:.4g}" for value in values)
        mean = format_mean(values, digits=0 if np.max(np.abs(values)) >= 100 else 2)
        yield (
            f"`{task}`",
            variant,
            f"`{method}`",
            ", ".join(str(run.seed) for run in seeds),
            f"{frames:,.0f}",
            each,
            mean,
        )


SUMMARY_METRICS = ("return", "solved")
SUMMARY_HEAD = ("task", "variant", "method", "seeds", "frames", "last {}, each seed", "mean")


def _key(row: Row) -> RunKey:
    return row.variant, row.task, row.agent, row.representation, row.bonus, row.seed


def _parse(line: Sequence[str]) -> Row:
    *names, seed, frames, seconds, metric, value, commit = line
    study, variant, task, agent, representation, bonus, views = names
    return Row(
        *(study, variant, task, agent, representation, bonus, views, int(seed), float(frames)),
        *(float(seconds) if seconds else None, metric, float(value), commit),
    )


def _compress(rows: Iterable[Row]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_format(value) for value in astuple(row)] for row in rows)
    return gzip.compress(text.getvalue().encode(), mtime=0)  # the same rows make the same bytes


def _format(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _config_path(study: str, variant: str, results: Path) -> Path:
    name = re.sub(r"[^\w.=-]+", "_", variant.replace("*", "times").replace("/", "by"))
    return results / study / CONFIGS_DIR / f"{name or 'settings'}.json"


def _name_cell(row: Row) -> str:
    return f"{row.task} {format_method(row.agent, row.representation, row.bonus)}"


def _merge_settings(
    stored: Mapping[str, Any], new: Mapping[str, Any], cell: str, *, where: str, is_known: bool
) -> dict[str, Any]:
    """Return the settings of a variant with those of one more run, whose method may use other groups of settings.

    Values that differ from those of other tasks and methods go into a group named by `cell`, which `is_known` if it has
    runs already.
    """
    expected = {**stored, **stored.get(cell, {})}
    own = {name: value for name, value in new.items() if name in expected and expected[name] != value}
    if own and is_known:
        name = min(own)
        raise ValueError(
            f"{where} has runs with other settings: expected {name}={expected[name]}, got {own[name]}. "
            "Use another variant."
        )
    return {**new, **stored, **({cell: own} if own else {})}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the directory of a study, so that runs that finish at the same time add their rows one after the other."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


Value = tuple[float, float | None, str, float]
"""Frames, seconds if known, metric, value."""


def _records_of_run(run_dir: Path) -> list[dict[str, Any]]:
    """Return the records of a run without those that a resume played again."""
    records: list[dict[str, Any]] = []
    for record in read_records(run_dir / METRICS_FILE):
        if record["kind"] == "resume":
            while records and records[-1]["frames"] > record["frames"]:
                records.pop()
        records.append(record)
    if not records:
        raise ValueError(f"{run_dir / METRICS_FILE} holds no record")
    return records


def _evaluations(records: Iterable[Mapping[str, Any]]) -> Iterator[Value]:
    last = {record["frames"]: record for record in records if record["kind"] == "evaluation"}
    for name in ("return", "test_return"):
        for frames, record in last.items():
            if name in record:
                yield frames, record["seconds"], name, record[name]


def _training_episodes(records: Sequence[Mapping[str, Any]]) -> Iterator[Value]:
    episodes = [record for record in records if record["kind"] == "episode"]
    edges = np.linspace(0, max(record["frames"] for record in records), TRAINING_POINTS + 1)[1:]
    bins = np.searchsorted(edges, [record["frames"] for record in episodes])  # each up to its edge
    for index in np.unique(bins):
        ended = [record for record, place in zip(episodes, bins, strict=True) if place == index]
        returns = np.array([record["return"] for record in ended], np.float64)
        here = float(edges[index]), ended[-1]["seconds"]
        yield *here, "training_return", returns.mean()
        yield *here, "training_episodes", len(returns)
        yield *here, "rewarded_episodes", (returns > 0).sum()


def _train_values(records: Iterable[Mapping[str, Any]], metrics: Collection[str]) -> Iterator[Value]:
    for record in records:
        if record["kind"] != "train":
            continue
        here = record["frames"], record["seconds"]
        for name, value in record.items():
            if name.split("/")[0] in metrics:
                yield *here, name, value
        if "healthy" in metrics and "health" in record:
            yield *here, "healthy", record["health"].startswith("healthy")


def _round(value: Any, digits: int) -> str:
    return f"{round(float(value), digits) + 0.0:.{digits}f}"  # with 0 added there is no -0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=sorted(path.parent.name for path in RESULTS.glob(f"*/{TABLE_FILE}")))
    parser.add_argument("--metric", help="default: return, otherwise solved, otherwise the first of the table")
    asked = parser.parse_args()
    runs = read_runs(asked.study)
    metrics = list(dict.fromkeys(name for run in runs for name in run.metrics))
    metric = asked.metric or next((name for name in SUMMARY_METRICS if name in metrics), metrics[0])
    if metric not in metrics:
        parser.error(f"unknown metric {metric}: expected one of {', '.join(metrics)}")
    head = [column.format(metric) for column in SUMMARY_HEAD]
    print(format_table(head, summarize(runs, metric)))


if __name__ == "__main__":
    main()
