"""Presets: named settings of a run, as TOML files.

Settings that a preset does not name keep their defaults. `paper/...` hold every row of the paper's tables (a test
compares them); `cpu` and `minute` are manyview's own. Your own presets are files in `~/.config/manyview/presets`, or
named by their path; built-in names win.

Below a group, `[agent.NAME]`, `[representation.NAME]` and `[bonus.NAME]` apply to the part of this name;
`[agent.all]` and so on to every part that has the setting. `[suites.NAME.GROUP]`, `[agents.NAME.GROUP]` and
`[representations.NAME.GROUP]` hold further settings for a suite, an agent and a representation; later ones win.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from manyview.config.files import name_file, read_toml
from manyview.config.method import parse_method
from manyview.config.overrides import apply_overrides, check_group, check_names, check_overrides, merge_overrides
from manyview.config.schema import RunConfig
from manyview.envs.registration import list_suites
from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS
from manyview.methods.registry import Registry
from manyview.utils.text import suggest

PresetValues = Mapping[str, Any]
PARTS = {"agent": AGENTS, "representation": REPRESENTATIONS, "bonus": BONUSES}
ALL = "all"


def _find_presets(directory: Path) -> dict[str, Path]:
    files = sorted(directory.rglob("*.toml"))
    return {file.relative_to(directory).with_suffix("").as_posix(): file.resolve() for file in files}


BUILT_IN_PRESETS = _find_presets(Path(__file__).parent)


@dataclass(frozen=True)
class Preset:
    """Settings of a preset file."""

    summary: str
    """Description in `manyview train --help`."""
    values: PresetValues
    """Settings for every run."""
    suites: Mapping[str, PresetValues]
    """Further settings by suite of the task."""
    agents: Mapping[str, PresetValues]
    """Further settings by agent; they win over those of the suite."""
    representations: Mapping[str, PresetValues]
    """Further settings by representation; they win over those of the agent."""


def get_user_directory() -> Path:
    """Return the directory of the user's own presets."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "manyview" / "presets"


def list_presets() -> dict[str, Path]:
    """Return the files of all presets by name; the user's own after the built-in ones."""
    return {**BUILT_IN_PRESETS, **_find_presets(get_user_directory()), **BUILT_IN_PRESETS}


def read_preset(name: str) -> Preset:
    """Read a preset by name, or by path if the name ends in `.toml`.

    Raises:
        ValueError: There is no such preset, or its file is invalid.

    """
    presets = list_presets()
    file = Path(name) if name.endswith(".toml") else presets.get(name)
    if file is None:
        raise ValueError(
            f"unknown preset {name!r}: expected one of {', '.join(presets)}, or the path of a .toml file"
            f"{suggest(name, presets)}"
        )
    with name_file(file):
        return _parse_preset(read_toml(file))


def _parse_preset(values: dict[str, Any]) -> Preset:
    """Return the preset of a file's values; check all its sections, also those that a run does not use."""
    summary = values.pop("summary", "")
    suites, agents, representations = (values.pop(key, {}) for key in ("suites", "agents", "representations"))
    if not isinstance(summary, str):
        raise ValueError(f"invalid summary: expected a string, got {summary!r}")
    _check_sections(values)
    for key, further, names in (
        ("suites", suites, list_suites()),
        ("agents", agents, AGENTS.list_names()),
        ("representations", representations, REPRESENTATIONS.list_names()),
    ):
        check_group(further, key)
        check_names(further, names, f"{key}.")
        for name, sections in further.items():
            check_group(sections, f"{key}.{name}")
            _check_sections(sections, path=f"{key}.{name}.")
    return Preset(summary, values, suites, agents, representations)


def _check_sections(sections: PresetValues, *, path: str = "") -> None:
    """Raise `ValueError` for unknown groups, parts and settings, and for values of a wrong type."""
    groups = {name: hint for name, hint in get_type_hints(RunConfig).items() if is_dataclass(hint) or name in PARTS}
    check_names(sections, groups, path)
    for group, values in sections.items():
        check_group(values, f"{path}{group}")
        if group in PARTS:
            for name, settings in values.items():
                check_group(settings, f"{path}{group}.{name}")
                _check_part(PARTS[group], name, settings, f"{path}{group}.{name}.")
        else:
            check_overrides(groups[group], values, path=f"{path}{group}.")


def _check_part(registry: Registry, name: str, settings: PresetValues, path: str) -> None:
    """Check the settings of a part; those for all parts must each be one of some part."""
    if name != ALL:
        check_overrides(registry[name].config, settings, path=path)
        return
    known: set[str] = set()
    for config in registry.iter_configs():
        known |= {field.name for field in fields(config)}
        if settings.keys() <= known:
            return
    check_names(settings, known, path)


def choose_preset(task: str, method: str, *, accelerator: bool) -> str:
    """Return the default preset for a task and method.

    With an accelerator it is the paper's preset if there is one; otherwise `minute` for toy tasks and `cpu` for others.
    """
    paper_preset = f"paper/{_parse_suite(task)}/{method.split('+')[0]}"
    if accelerator and paper_preset in list_presets():
        return paper_preset
    return "minute" if _parse_suite(task) == "toy" else "cpu"


def make_config(task: str, *, method: str, seed: int = 1, preset: str = "") -> RunConfig:
    """Return the default config of a method.

    Raises:
        ValueError: The method is unknown, or its parts do not fit together.

    """
    agent, representation, bonus = parse_method(method)
    return RunConfig(
        task=task,
        seed=seed,
        preset=preset,
        agent=AGENTS[agent].config(),
        representation=REPRESENTATIONS[representation].config(),
        bonus=BONUSES[bonus].config(),
    )


def load_preset(preset: str, *, task: str, method: str, seed: int) -> RunConfig:
    """Return the run config of one or several comma-separated presets; later ones win.

    Raises:
        ValueError: A preset is unknown, or the settings are invalid.

    """
    config = make_config(task, method=method, seed=seed, preset=preset)
    for name in preset.split(","):
        definition = read_preset(name)
        further = (
            definition.suites.get(_parse_suite(task), {}),
            definition.agents.get(config.agent_name, {}),
            definition.representations.get(config.representation_name, {}),
        )
        try:
            config = apply_sections(config, definition.values, *further)
        except ValueError as error:
            raise ValueError(f"preset {name}: {error}") from None
    return config


def apply_sections(config: RunConfig, *values: PresetValues) -> RunConfig:
    """Return `config` with settings in the form of a preset, with sections by part; later ones win.

    Settings directly below `agent`, `representation` or `bonus` are those of the chosen part.
    """
    overrides: dict[str, Any] = {}
    for sections in values:
        overrides = merge_overrides(overrides, _select_parts(config, sections))
    return apply_overrides(config, overrides)


def _select_parts(config: RunConfig, values: PresetValues) -> dict[str, Any]:
    """Return the settings of the chosen parts, without the names of the parts."""
    selected = dict(values)
    for kind in PARTS:
        sections, part = values.get(kind, {}), getattr(config, kind)
        names = {field.name for field in fields(part)}
        general = {name: value for name, value in sections.get(ALL, {}).items() if name in names}
        specific = sections.get(getattr(config, f"{kind}_name"), {})
        direct = {name: value for name, value in sections.items() if name != ALL and name not in PARTS[kind]}
        merged = merge_overrides(merge_overrides(general, specific), direct)
        # The settings of an encoder that a bonus shares do not exist.
        selected[kind] = {
            name: value
            for name, value in merged.items()
            if name in direct or not isinstance(value, Mapping) or is_dataclass(getattr(part, name, value))
        }
    return selected


def _parse_suite(task: str) -> str:
    suite = task.split("/")[0]
    return suite if suite in list_suites() else ""
