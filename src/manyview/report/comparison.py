"""Differences between the settings and versions of runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from manyview.report.curves import flatten_settings, hide_path
from manyview.utils.text import sanitize_text

ABSENT = "(absent)"
"""Value of a setting that a run does not have."""
MAX_VALUE_CHARS = 300
MAX_PACKAGES, MAX_PACKAGE_CHARS = 50, 80
"""Limits of packages in a manifest, which names about ten, and of their names."""
MAX_ROWS = 200
"""Limit of differences in a table; two runs differ in a few tens."""
COLUMNS = ("task", "method", "seed")
"""Settings that tables of runs show in columns of their own."""
PART_NAMES = ("agent.name", "representation.name", "bonus.name")
ACCOUNT_SETTINGS = ("logging.entity",)
"""Settings that name an account of the user, which are left out."""
SOFTWARE = ("python", "platform", "commit")
HARDWARE = ("device", "cpu", "threads", "dtype", "renderer")
"""Fields of a manifest to show; host, process and environment variables stay private."""


class Difference(NamedTuple):
    """A name with its value in each run."""

    name: str
    values: tuple[Any, ...]


def list_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by dotted name, without paths of the machine and accounts of the user."""
    settings: dict[str, Any] = {}
    flatten_settings({name: value for name, value in config.items() if name not in COLUMNS}, settings)
    shown = {name: value for name, value in settings.items() if name not in ACCOUNT_SETTINGS}
    return {name: _strip_preset(value) if name == "preset" else hide_path(name, value) for name, value in shown.items()}


def list_versions(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return software and hardware of a run by name."""
    versions = manifest.get("versions")
    items = list(versions.items())[:MAX_PACKAGES] if isinstance(versions, Mapping) else []
    packages = {sanitize_text(name, max_chars=MAX_PACKAGE_CHARS): number for name, number in items}
    return packages | {name: manifest[name] for name in (*SOFTWARE, *HARDWARE) if manifest.get(name) is not None}


def list_differences(mappings: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Return the names whose values are not equal in all mappings, sorted."""
    names = sorted({name for mapping in mappings for name in mapping})
    rows = (Difference(name, tuple(mapping.get(name, ABSENT) for mapping in mappings)) for name in names)
    # By text: True equals 1, and NaN does not equal itself.
    return [row for row in rows if len(set(map(repr, row.values))) > 1]


def leave_out_parts(differences: Sequence[Difference]) -> list[Difference]:
    """Leave out the settings that some of the runs lack because their agent, representation or bonus is another."""
    parts = {row.name.removesuffix("name") for row in differences if row.name in PART_NAMES}
    return [
        row
        for row in differences
        if row.name in PART_NAMES or not row.name.startswith(tuple(parts)) or ABSENT not in row.values
    ]


def format_value(value: Any) -> str:
    """Format the value of a setting as JSON of limited length, and text as it is."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."


def _strip_preset(preset: Any) -> Any:
    """Return the names of presets, of a file without its path."""
    if not isinstance(preset, str):
        return preset
    return ",".join(PurePath(part).stem if part.endswith(".toml") else part for part in preset.split(","))
