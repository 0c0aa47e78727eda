"""What a sweep is: the runs of every combination that a TOML file names. Nothing here needs Ray.

tasks = ["dmc/ball_in_cup_catch", "dmc/pendulum_swingup"]
methods = ["drqv2+mem", "drqv2+none"]
seeds = [1, 2, 3]
preset = "cpu"

[set]                          # settings of all runs
"replay.batch_size" = 128

[variants.joint]               # each of them once more, with these
"mem.entropy" = "joint"
"""

import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from manyview.config.overrides import apply_overrides, nest_overrides, to_plain
from manyview.config.presets import choose_preset
from manyview.envs.registration import find_task
from manyview.report.runs import summarize_run
from manyview.scale.search import Search, Values, format_directory_name, parse_search
from manyview.train import RunConfig, RunDir, load_preset
from manyview.train.resume import check_same_settings
from manyview.train.run_dir import default_run_path, validate_directory_name
from manyview.utils.files import read_bounded
from manyview.utils.json_io import MAX_DEPTH, check_depth, is_number

Settings = Mapping[str, Any]
MAX_BYTES = 2**18
"""Of the file."""
KINDS: Mapping[str, tuple[type, str]] = {
    "preset": (str, "a name"),
    "out": (str, "a folder"),
    "set": (dict, "a table of settings"),
    "variants": (dict, "a table of tables of settings"),
}


class PlannedRun(NamedTuple):
    config: RunConfig
    run_dir: Path


def get_log_path(run: PlannedRun) -> Path:
    """What a run printed, and how it crashed."""
    return run.run_dir.with_name(f"{run.run_dir.name}.log")


def compute_mean_return(runs: Sequence[PlannedRun]) -> float | None:
    """The mean last return of a trial's runs, when all have finished."""
    if not all(RunDir(one.run_dir).is_finished for one in runs):
        return None
    returns = [summarize_run(one.run_dir).last_return for one in runs]
    return None if None in returns else mean(one for one in returns if one is not None)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Fields are those of the file."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (1,)
    preset: str | None = None
    """None: what `manyview train` would take on a machine without an accelerator."""
    out: str = "runs"
    """Folder of the runs, which are laid out in it as `manyview train` does."""
    set: Settings = field(default_factory=dict)
    variants: Mapping[str, Settings] = field(default_factory=dict)
    search: Search | None = None
    """Instead of variants: values are chosen, one trial after the other."""
    cpus: float = 1.0
    """Of the cluster, that a run takes."""
    gpus: float = 0.0
    memory_gb: float = 0.0
    """Of a machine, that a run takes: each looks for what is free when it begins, and a replay fills later."""
    retries: int = 2
    """How often a run that crashed goes on from its last checkpoint before it is given up."""

    def __post_init__(self) -> None:
        for name in ("tasks", "methods", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be a list without repetitions, got {list(values)}")

        for name, group in (("set", self.set), *((f"variants.{name}", group) for name, group in self.variants.items())):
            if not isinstance(group, Mapping):
                raise ValueError(f"{name} must be a table of settings, got {group!r}")
        for name in ("cpus", "gpus", "memory_gb", "retries"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < inf:
                raise ValueError(f"{name} must be a number that is at least 0, got {value!r}")
        if self.search is not None and (len(self.tasks) > 1 or len(self.methods) > 1 or self.variants):
            raise ValueError("a search is for one task and one method, without variants; its seeds are averaged over")

    def plan_runs(self) -> list[PlannedRun]:
        """Every run, its settings checked, also against those of the run that its folder holds.

        Those of one seed stand together: half a sweep is then a comparison too.

        Of a search those that have begun.
        """
        if self.search is not None:
            for corner in self.search.iter_corners():
                self.plan_trial(corner)
            return [one for values in self.find_tried() for one in self.plan_trial(values)]
        variants = dict(self.variants) or {"": {}}
        combinations = product(self.seeds, self.tasks, self.methods, variants.items())
        planned = [self._plan_run(task, method, seed, *variant) for seed, task, method, variant in combinations]
        if shared := [folder for folder, count in Counter(one.run_dir for one in planned).items() if count > 1]:
            raise ValueError(f"two runs in one folder: expected a folder each, got {shared[0]}. Rename a task")
        _check_existing_runs(planned)
        return planned

    def plan_trial(self, values: Values) -> list[PlannedRun]:
        """The runs of a search with these values, one a seed."""
        runs = [
            self._plan_run(self.tasks[0], self.methods[0], seed, format_directory_name(values), values)
            for seed in self.seeds
        ]
        if not all(one.config.evaluation.episodes for one in runs):
            raise ValueError("a search chooses by evaluations: evaluation.episodes must be at least 1")
        return runs

    def find_tried(self) -> list[Values]:
        """By the search, as the folders tell; ValueError if they were made with other settings than these."""
        if self.search is None:
            return []
        tried = self.search.find_tried(
            self._plan_run(self.tasks[0], self.methods[0], self.seeds[0], "", {}).run_dir.parent
        )
        _check_existing_runs(one for values in tried for one in self.plan_trial(values))
        return tried

    def _plan_run(self, task: str, method: str, seed: int, variant: str, overrides: Settings) -> PlannedRun:
        if ":" not in task:  # that of a function of one's own is known when it is called
            find_task(task)
        preset = self.preset or choose_preset(task, method, accelerator=False)
        config = load_preset(preset, task=task, method=method, seed=seed)
        config = apply_overrides(config, nest_overrides([*self.set.items(), *overrides.items()]))
        if config.scale.actors:
            raise ValueError("a run of a sweep is one process: scale.actors is for `manyview train`")
        default_dir = default_run_path(config).relative_to("runs")
        further_parts = [validate_directory_name(variant)] if variant else []
        return PlannedRun(config, Path(self.out, *default_dir.parts[:-1], *further_parts, default_dir.name))


def _check_existing_runs(runs: Iterable[PlannedRun]) -> None:
    """Folders with runs of other settings: the file was changed since, or `out` is another sweep's."""
    for run in runs:
        folder = RunDir(run.run_dir)
        if folder.has_run:
            try:
                check_same_settings(to_plain(folder.read_config()), to_plain(run.config))
            except ValueError as error:
                raise ValueError(f"{run.run_dir}: {error}") from None


def read_sweep(path: Path) -> Sweep:
    """Of a file; what is wrong with it raises ValueError."""
    try:
        content = read_bounded(Path(os.path.realpath(path)), max_bytes=MAX_BYTES)
        if max(line.count(b".") for line in content.split(b"\n")) > MAX_DEPTH:  # a key that takes minutes to parse
            raise ValueError("it is nested too deeply")
        plain = tomllib.loads(content.decode())
        check_depth(plain)
        return _parse_sweep(plain)
    except RecursionError:
        raise ValueError(f"{path}: it is nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _parse_sweep(plain: dict[str, Any]) -> Sweep:
    known = set(Sweep.__dataclass_fields__)
    if unknown := sorted(plain.keys() - known):
        raise ValueError(f"a sweep has no {unknown[0]!r}; it has {', '.join(sorted(known))}")
    if missing := sorted({"tasks", "methods"} - plain.keys()):
        raise ValueError(f"{missing[0]!r} is missing")
    kinds: dict[str, Any] = {"tasks": str, "methods": str, "seeds": int}
    for name, kind in kinds.items():
        values = plain.get(name, [])
        if not isinstance(values, list) or not all(type(value) is kind for value in values):
            raise ValueError(f"{name} must be a list of {'numbers' if kind is int else 'names'}, got {values!r}")
    for name, (kind, expected) in KINDS.items():
        if name in plain and not isinstance(plain[name], kind):
            raise ValueError(f"invalid {name}: expected {expected}, got {plain[name]!r}")
    for name in ("cpus", "gpus", "memory_gb", "retries"):
        if name in plain and not is_number(plain[name]):
            raise ValueError(f"{name} must be a number that is at least 0, got {plain[name]!r}")
    read: dict[str, Any] = {name: tuple(plain[name]) for name in kinds if name in plain}
    if "search" in plain:
        read["search"] = parse_search(plain["search"])
    return Sweep(**{**plain, **read})
