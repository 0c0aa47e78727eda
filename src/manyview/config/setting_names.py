"""Find settings by a name without its group, with a wrong one or misspelled, for suggestions in error messages."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

from manyview.config.schema import RunConfig
from manyview.methods.registry import Registry
from manyview.utils.text import format_suggestions, suggest

MAX_SUGGESTIONS = 3


def find_settings(leaf: str) -> list[str]:
    """Return the full names of the settings with this last part, such as `replay.batch_size` of `batch_size`."""
    return list(_collect_settings().get(leaf, {}))[:MAX_SUGGESTIONS]


def suggest_setting(name: str, group: Iterable[str], path: str) -> str:
    """Return a suggestion for an unknown `name` in a group: the same name elsewhere, or a close one, first there.

    A setting that only some agents, representations or bonuses have is followed by their names.
    """
    settings = _collect_settings()
    if name not in settings and (hint := suggest(name, group, form=f"{path}{{}}")):
        return hint
    for close in [name] if name in settings else get_close_matches(name, settings, n=1):
        found = [_format_setting(full_name, parts) for full_name, parts in settings[close].items()]
        return format_suggestions(found[:MAX_SUGGESTIONS])
    return ""


def _collect_settings() -> dict[str, dict[str, list[str]]]:
    """Return the full names of all settings by their last part, each with the parts that have it if not all do."""
    settings: dict[str, dict[str, list[str]]] = {}
    for group, hint in get_type_hints(RunConfig, include_extras=True).items():
        registry = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Registry)), None)
        if registry is None:
            for path in _iter_settings(hint, group):
                settings.setdefault(path.rpartition(".")[2], {})[path] = []
            continue
        for part in registry.list_names():
            with suppress(ValueError):  # a package that cannot be loaded must not hide the error to explain
                for path in _iter_settings(registry[part].config, group):
                    settings.setdefault(path.rpartition(".")[2], {}).setdefault(path, []).append(part)
    return settings


def _iter_settings(kind: Any, path: str) -> Iterator[str]:
    """Yield the full names of the settings of a group, or its own if `kind` is no group."""
    group = next((option for option in (kind, *get_args(kind)) if is_dataclass(option)), None)
    if group is None:
        yield path
        return
    for name, hint in get_type_hints(group).items():
        yield from _iter_settings(hint, f"{path}.{name}")


def _format_setting(path: str, parts: list[str]) -> str:
    return f"{path} of {', '.join(parts)}" if parts else path
