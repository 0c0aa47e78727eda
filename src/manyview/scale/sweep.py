"""Sweeps: runs of all combinations that a TOML file lists. Needs no Ray.

tasks = ["dmc/ball_in_cup_catch", "dmc/pendulum_swingup"]
methods = ["drqv2+mem", "drqv2+none"]
seeds = [1, 2, 3]
preset = "cpu"

[set]                          # overrides for all runs
"replay.batch_size" = 128

[[where]]                      # preset and overrides for the runs of some tasks or methods; later ones win
methods = ["drqv2+none"]
"env.views" = ["0"]

[variants.joint]               # every run once per variant, with its overrides
"bonus.mem.entropy" = "joint"  # for runs with this bonus; "bonus.entropy" is for all runs
"""

import os
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from manyview.config.overrides import nest_overrides, to_plain
from manyview.config.presets import apply_sections, choose_preset
from manyview.envs.registration import find_task
from manyview.report.runs import summarize_run
from manyview.scale.search import Search, Values, format_directory_name, parse_search
from manyview.training import RunConfig, RunDir, load_preset
from manyview.training.resume import check_same_settings
from manyview.training.run_dir import default_run_path, validate_directory_name
from manyview.utils.files import read_bounded
from manyview.utils.json_io import MAX_DEPTH, check_depth, is_number
from manyview.utils.text import suggest

Settings = Mapping[str, Any]
MAX_BYTES = 2**18
"""Limit of the sweep file."""
KINDS: Mapping[str, tuple[type, str]] = {
    "preset": (str, "a name"),
    "out": (str, "a directory"),
    "set": (dict, "a table of settings"),
    "variants": (dict, "a table of tables of settings"),
    "where": (list, "tables of tasks, methods, a preset and settings"),
    "figure": (dict, "the description of a figure"),
}
"""Type and description of the fields that are no lists or numbers."""


class PlannedRun(NamedTuple):
    """A run of a sweep."""

    config: RunConfig
    run_dir: Path
    variant: str = ""
    """Name in `variants`; empty without variants."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Preset and overrides of the runs of some tasks or methods."""

    tasks: tuple[str, ...] | None = None
    """Tasks of the runs; None selects all."""
    methods: tuple[str, ...] | None = None
    """Methods of the runs; None selects all."""
    preset: str | None = None
    """Preset instead of the sweep's."""
    settings: Settings = field(default_factory=dict)
    """Overrides by dotted name; they win over `set`."""

    def matches(self, task: str, method: str) -> bool:
        """Return whether a run of this task and method is meant."""
        return (self.tasks is None or task in self.tasks) and (self.methods is None or method in self.methods)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Contents of a sweep file."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (1,)
    preset: str | None = None
    """Preset of all runs; None selects the default of `manyview train` on a machine without an accelerator."""
    out: str = "runs"
    """Directory of the runs, with the same layout as that of `manyview train`."""
    set: Settings = field(default_factory=dict)
    """Overrides for all runs, by dotted name."""
    where: tuple[Condition, ...] = ()
    """Presets and overrides of some runs; later ones win."""
    variants: Mapping[str, Settings] = field(default_factory=dict)
    """Further overrides by name of the variant; every run is trained once per variant."""
    search: Search | None = None
    """Search space instead of variants, whose values Optuna suggests trial by trial."""
    cpus: float = 1.0
    """CPUs of the cluster per run."""
    gpus: float = 0.0
    """GPUs of the cluster per run."""
    memory_gb: float = 0.0
    """Memory to reserve per run on its machine, in GB; a run checks free memory at its start, but the replay fills up
    later."""
    retries: int = 2
    """Number of times that a crashed run is resumed from its newest checkpoint before it is given up."""
    figure: Settings = field(default_factory=dict)
    """Description of the figure that the runs are for, as `manyview paper` reads it; no effect on runs."""

    def __post_init__(self) -> None:
        for name in ("tasks", "methods", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be a non-empty list without duplicates, got {list(values)}")
        for name, group in (("set", self.set), *((f"variants.{name}", group) for name, group in self.variants.items())):
            if not isinstance(group, Mapping):
                raise ValueError(f"{name} must be a table of settings, got {group!r}")
        for name in ("cpus", "gpus", "memory_gb", "retries"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < inf:
                raise ValueError(f"{name} must be a number that is at least 0, got {value!r}")
        if int(self.retries) != self.retries:
            raise ValueError(f"retries must be a whole number, got {self.retries!r}")
        if self.search is not None and (len(self.tasks) > 1 or len(self.methods) > 1 or self.variants):
            raise ValueError(
                "invalid search: expected one task and one method without variants, got "
                f"{len(self.tasks)} tasks, {len(self.methods)} methods and {len(self.variants)} variants"
            )

    def plan_runs(self) -> list[PlannedRun]:
        """Return all runs, or those of the trials that a search has started.

        Runs of one seed are adjacent, so that half a sweep is already a comparison.

        Raises:
            ValueError: Settings are invalid, or differ from those of the run in the same directory.

        """
        if self.search is not None:
            for corner in self.search.iter_corners():
                self.plan_trial(corner)
            return [run for values in self.find_tried() for run in self.plan_trial(values)]
        variants = dict(self.variants) or {"": {}}
        configs = [
            (variant, self._make_config(task, method, overrides))
            for task, method, (variant, overrides) in product(self.tasks, self.methods, variants.items())
        ]
        planned = [self._place_run(config, seed, variant) for seed in self.seeds for variant, config in configs]
        if shared := [path for path, count in Counter(run.run_dir for run in planned).items() if count > 1]:
            raise ValueError(f"two runs in one directory: expected one directory each, got {shared[0]}. Rename a task")
        _check_existing_runs(planned)
        return planned

    def plan_trial(self, values: Values) -> list[PlannedRun]:
        """Return the runs of a search trial with these values, one per seed."""
        runs = [self._plan_run(seed, format_directory_name(values), values) for seed in self.seeds]
        if not all(run.config.evaluation.episodes for run in runs):
            raise ValueError("a search needs evaluations: expected evaluation.episodes of at least 1, got 0")
        return runs

    def find_tried(self) -> list[Values]:
        """Return the values that the search has tried, according to the directories.

        Raises:
            ValueError: A directory holds a run with other settings.

        """
        if self.search is None:
            return []
        tried = self.search.find_tried(self._plan_run(self.seeds[0], "", {}).run_dir.parent)
        _check_existing_runs(run for values in tried for run in self.plan_trial(values))
        return tried

    def _plan_run(self, seed: int, variant: str, overrides: Settings) -> PlannedRun:
        """Return a run of the only task and method of a search."""
        return self._place_run(self._make_config(self.tasks[0], self.methods[0], overrides), seed, variant)

    def _make_config(self, task: str, method: str, overrides: Settings) -> RunConfig:
        if ":" not in task:  # a user's own function can only be checked by calling it
            find_task(task)
        conditions = [condition for condition in self.where if condition.matches(task, method)]
        presets = [self.preset, *(condition.preset for condition in conditions)]
        preset = next(filter(None, reversed(presets)), None) or choose_preset(task, method, accelerator=False)
        config = load_preset(preset, task=task, method=method, seed=self.seeds[0])
        settings = (self.set, *(condition.settings for condition in conditions), overrides)
        config = apply_sections(config, nest_overrides(chain.from_iterable(group.items() for group in settings)))
        if config.scale.actors:
            raise ValueError(
                f"runs of a sweep are single processes: expected scale.actors=0, got {config.scale.actors}. Use "
                "`manyview train` for actors"
            )
        return config

    def _place_run(self, config: RunConfig, seed: int, variant: str) -> PlannedRun:
        config = replace(config, seed=seed)
        default_dir = default_run_path(config).relative_to("runs")
        further_parts = [validate_directory_name(variant)] if variant else []
        run_dir = Path(self.out, *default_dir.parts[:-1], *further_parts, default_dir.name)
        return PlannedRun(config, run_dir, variant)


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file.

    Raises:
        ValueError: The file is invalid; the message starts with its path.

    """
    try:
        content = read_bounded(Path(os.path.realpath(path)), max_bytes=MAX_BYTES)
        if max(line.count(b".") for line in content.split(b"\n")) > MAX_DEPTH:  # such a key takes minutes to parse
            raise ValueError(f"the file is nested too deeply: expected at most {MAX_DEPTH} levels")
        plain = tomllib.loads(content.decode())
        check_depth(plain)
        return _parse_sweep(plain)
    except RecursionError:
        raise ValueError(f"{path}: the file is nested too deeply: expected at most {MAX_DEPTH} levels") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def get_log_path(run: PlannedRun) -> Path:
    """Return the file with the output and traceback of a run."""
    return run.run_dir.with_name(f"{run.run_dir.name}.log")


def compute_mean_return(runs: Sequence[PlannedRun]) -> float | None:
    """Return the mean last return of a trial's runs, or None if one is unfinished or has no return."""
    if not all(RunDir(run.run_dir).is_finished for run in runs):
        return None
    returns = [summarize_run(run.run_dir).last_return for run in runs]
    return None if None in returns else mean(value for value in returns if value is not None)


def _check_existing_runs(runs: Iterable[PlannedRun]) -> None:
    """Reject directories whose runs have other settings: the file was changed, or `out` belongs to another sweep."""
    for run in runs:
        run_dir = RunDir(run.run_dir)
        if run_dir.has_run:
            try:
                check_same_settings(to_plain(run_dir.read_config()), to_plain(run.config))
            except ValueError as error:
                raise ValueError(f"{run.run_dir}: {error}") from None


def _parse_sweep(plain: dict[str, Any]) -> Sweep:
    known = set(Sweep.__dataclass_fields__)
    if unknown := sorted(plain.keys() - known):
        raise ValueError(f"unknown sweep field {unknown[0]!r}: expected one of {', '.join(sorted(known))}")
    if missing := sorted({"tasks", "methods"} - plain.keys()):
        raise ValueError(f"missing sweep field {missing[0]!r}: expected `tasks` and `methods`")
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
    parsed: dict[str, Any] = {name: tuple(plain[name]) for name in kinds if name in plain}
    parsed["where"] = tuple(_parse_condition(condition, parsed) for condition in plain.get("where", []))
    if "search" in plain:
        parsed["search"] = parse_search(plain["search"])
    return Sweep(**{**plain, **parsed})


def _parse_condition(plain: Any, names: Mapping[str, Sequence[str]]) -> Condition:
    if not isinstance(plain, dict):
        raise ValueError(f"invalid where: expected a table of settings, got {plain!r}")
    settings = dict(plain)
    selected = {name: settings.pop(name) for name in ("tasks", "methods") if name in settings}
    for name, values in selected.items():
        if not isinstance(values, list):
            raise ValueError(f"invalid where.{name}: expected a list of names, got {values!r}")
        for value in values:
            check_choice(value, names[name], f"where.{name}")
    preset = settings.pop("preset", None)
    if preset is not None and not isinstance(preset, str):
        raise ValueError(f"invalid where.preset: expected a name, got {preset!r}")
    return Condition(**{name: tuple(values) for name, values in selected.items()}, preset=preset, settings=settings)


def check_choice(value: object, choices: Collection[Any], name: str) -> None:
    """Raise `ValueError` with the closest choice if a value is none of `choices`."""
    if value not in choices:
        raise ValueError(
            f"unknown {name} {value!r}: expected one of {', '.join(map(str, choices))}{suggest(value, choices)}"
        )
