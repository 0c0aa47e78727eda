"""Command that trains a run again, and the settings in which the run differs from its preset."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import join
from typing import Any, NamedTuple

from manyview.config.overrides import to_plain
from manyview.config.presets import BUILT_IN_PRESETS, load_preset, make_config
from manyview.config.resolve import resolve_config
from manyview.config.schema import RunConfig
from manyview.training.resume import compare_leaves

OWN_ARGUMENTS = ("task", "seed", "preset")
"""Settings that are arguments of the command themselves."""


class TrainCommand(NamedTuple):
    """Command of a run, exact: it resolves to the run's config."""

    text: str
    preset: str | None
    """Built-in preset that the differences refer to; None if they refer to the defaults of the method."""
    differences: Mapping[str, tuple[Any, Any]]
    """Values of the preset and of the run, by the dotted name of the setting."""


def strip_paths(config: RunConfig) -> RunConfig:
    """Return a config without paths and accounts of the user.

    Those are replay directory, initial run, demonstrations, preset files and the owner of the tracker's project.
    """
    initial_run, presets = config.schedule.initial_run, config.preset.split(",")
    demonstrations = config.replay.demonstrations
    return replace(
        config,
        preset=",".join(Path(name).stem if name.endswith(".toml") else name for name in presets),
        schedule=replace(config.schedule, initial_run=initial_run and Path(initial_run).name),
        logging=replace(config.logging, entity=None),
        replay=replace(config.replay, directory=None, demonstrations=demonstrations and Path(demonstrations).name),
    )


def build_train_command(config: RunConfig, *, config_file: str) -> TrainCommand:
    """Return the command of a run by its preset, or by `config_file` if presets of the user's own made it."""
    if config.preset and set(config.preset.split(",")) <= BUILT_IN_PRESETS.keys():
        base = load_preset(config.preset, task=config.task, method=config.method, seed=config.seed)
        differences = _list_differences(base, config)
        assignments = [f"{name}={json.dumps(value)}" for name, (_, value) in differences.items()]
        if _resolve(config, assignments) == config:
            options = ["--method", config.method, "--preset", config.preset, "--seed", str(config.seed)]
            words = ["manyview", "train", config.task, *options, *(["--set", *assignments] if assignments else [])]
            return TrainCommand(join(words), config.preset, differences)
    words = ["manyview", "train", config.task, "--config", config_file]
    return TrainCommand(join(words), None, _list_differences(make_config(config.task, method=config.method), config))


def _list_differences(base: RunConfig, config: RunConfig) -> dict[str, tuple[Any, Any]]:
    leaves = compare_leaves(to_plain(base), to_plain(config))
    return {name: (before, now) for name, before, now in leaves if name not in OWN_ARGUMENTS}


def _resolve(config: RunConfig, assignments: list[str]) -> RunConfig | None:
    """Return the config of the command; None if a setting cannot be assigned alone."""
    try:
        return resolve_config(
            config.task, method=config.method, preset=config.preset, seed=config.seed, assignments=assignments
        )
    except ValueError:
        return None
