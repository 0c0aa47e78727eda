"""Resolution of the run config from a preset or a config file, parts and assignments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from manyview.config.files import read_config_file
from manyview.config.method import DEFAULT_METHOD, parse_method
from manyview.config.overrides import NAME, apply_overrides, merge_overrides, nest_overrides
from manyview.config.presets import PARTS, choose_preset, load_preset
from manyview.config.schema import RunConfig
from manyview.utils.json_io import parse_value

DEFAULT_TASK = "dmc/cheetah_run"


def resolve_config(
    task: str | None,
    *,
    method: str | None = None,
    agent: str | None = None,
    representation: str | None = None,
    bonus: str | None = None,
    preset: str | None = None,
    seed: int | None = None,
    file: Path | None = None,
    frames: int | None = None,
    views: Sequence[str] | None = None,
    device: str | None = None,
    assignments: Sequence[str] = (),
    overrides: dict[str, Any] | None = None,
) -> RunConfig:
    """Return the run config of a preset or a config file, with assignments such as `replay.n_step=1` applied.

    `method` names all parts, `agent`, `representation` and `bonus` single ones; the others stay as they are. Without
    `preset` and `file`, the preset depends on the task, the method and whether torch finds an accelerator. With `file`,
    the other arguments replace its own if they are given. `frames`, `views` and `device` are `schedule.frames`,
    `env.views` and `compute.device`. They win over `overrides`, which win over `assignments`.

    Raises:
        ValueError: A name or value is invalid, or both `preset` and `file` are given.
        OSError: `file` cannot be read.

    """
    changes = nest_overrides(parse_assignment(assignment) for assignment in assignments)
    changes = merge_overrides(changes, overrides or {})
    view_names = None if views is None else list(views)
    shortcuts = {"schedule.frames": frames, "env.views": view_names, "compute.device": device}
    changes = merge_overrides(changes, nest_overrides((name, x) for name, x in shortcuts.items() if x is not None))
    names = dict(zip(PARTS, (agent, representation, bonus), strict=True))
    if method is not None:
        names = {kind: names[kind] or name for kind, name in zip(PARTS, parse_method(method), strict=True)}
    parts = {kind: {NAME: name} for kind, name in names.items() if name is not None}
    changes = merge_overrides(parts, changes)
    if file is None:
        return _load_preset(task or DEFAULT_TASK, preset, RunConfig.seed if seed is None else seed, changes)
    if preset is not None:
        raise ValueError(
            f"--config and --preset exclude each other: expected one of them, got {file} and {preset}. "
            "The file holds every setting"
        )
    replacements = {name: value for name, value in (("task", task), ("seed", seed)) if value is not None}
    return apply_overrides(read_config_file(file, **replacements), changes)


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """Split `replay.batch_size=128` into name and value; a value that is not JSON is a string."""
    name, equals, text = assignment.partition("=")
    if not equals:
        raise ValueError(
            f"invalid assignment of --set: expected NAME=VALUE, such as replay.batch_size=128, got {assignment!r}"
        )
    return name, parse_value(text)


def _load_preset(task: str, preset: str | None, seed: int, changes: dict[str, Any]) -> RunConfig:
    """Return the config of a preset for the parts that `changes` name, with the changes applied."""
    defaults = zip(PARTS, parse_method(DEFAULT_METHOD), strict=True)
    method = "+".join(str(_get(changes, kind, NAME) or name) for kind, name in defaults)
    accelerator = torch.accelerator.is_available() and _get(changes, "compute", "device") != "cpu"
    preset = preset or choose_preset(task, method, accelerator=accelerator)
    return apply_overrides(load_preset(preset, task=task, method=method, seed=seed), changes)


def _get(changes: dict[str, Any], group: str, name: str) -> Any:
    settings = changes.get(group)
    return settings.get(name) if isinstance(settings, dict) else None  # `apply_overrides` refuses other values
