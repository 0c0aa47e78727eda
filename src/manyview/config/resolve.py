"""Resolution of the run config from a preset or a config file, and assignments."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from manyview.config.overrides import apply_overrides, from_plain, nest_overrides
from manyview.config.presets import choose_preset, load_preset
from manyview.config.schema import RunConfig
from manyview.utils.json_io import read_json


def resolve_config(
    task: str,
    *,
    method: str | None = None,
    preset: str | None = None,
    seed: int | None = None,
    file: Path | None = None,
    assignments: Sequence[str] = (),
    device: str | None = None,
) -> RunConfig:
    """Return the run config of a preset or a config file, with assignments such as `replay.n_step=1` applied.

    Without `preset` and `file`, the preset depends on the task, the method and whether torch finds an accelerator.
    With `file`, `task` replaces its task, and `method` and `seed` replace its own if they are given.

    Raises:
        ValueError: A name or value is invalid, or both `preset` and `file` are given.
        OSError: `file` cannot be read.

    """
    if file is None:
        accelerator = torch.accelerator.is_available() and device != "cpu"
        method, seed = method or RunConfig.method, RunConfig.seed if seed is None else seed
        name = preset or choose_preset(task, method, accelerator=accelerator)
        config = load_preset(name, task=task, method=method, seed=seed)
    elif preset is not None:
        raise ValueError(
            f"--config and --preset exclude each other: expected one of them, got {file} and {preset}. "
            "The file holds every setting"
        )
    else:
        loaded = read_config_file(file)
        config = replace(loaded, task=task, method=method or loaded.method, seed=loaded.seed if seed is None else seed)
    config = apply_overrides(config, nest_overrides(parse_assignment(assignment) for assignment in assignments))
    return config if device is None else apply_overrides(config, {"machine": {"device": device}})


def read_config_file(file: Path) -> RunConfig:
    """Read the config.json of a run; a `ValueError` names the file."""
    try:
        return from_plain(RunConfig, read_json(file))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """Split `replay.batch_size=128` into name and value; a value that is not JSON is a string."""
    name, equals, text = assignment.partition("=")
    if not equals:
        raise ValueError(
            f"invalid assignment of --set: expected NAME=VALUE, such as replay.batch_size=128, got {assignment!r}"
        )
    try:
        return name, json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return name, text
