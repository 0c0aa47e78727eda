"""Overrides of nested config dataclasses, and their conversion to and from plain values."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass, replace
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

ConfigT = TypeVar("ConfigT")
PlainMapping = Mapping[str, Any]
TYPE_NAMES = {type(None): "None", tuple[str, ...]: "a list"}
"""Names of types in error messages, where they differ from `__name__`."""


def apply_overrides(config: ConfigT, overrides: PlainMapping, *, path: str = "") -> ConfigT:
    """Return a copy of `config` with the values of `overrides`.

    A nested mapping overrides values of the settings group it names; `path` prefixes names in error messages.

    Raises:
        ValueError: A name is unknown, or a value has the wrong type.

    """
    names = {field.name for field in fields(config)}  # type: ignore[arg-type]
    if unknown := overrides.keys() - names:
        raise ValueError(
            f"unknown setting {path}{sorted(unknown)[0]}: expected one of {', '.join(sorted(names))}. "
            "`manyview train --dry-run` lists all settings"
        )
    hints, values = get_type_hints(type(config)), {}
    for name, value in overrides.items():
        branch = getattr(config, name)
        if is_dataclass(branch) != isinstance(value, Mapping):
            expected = "a group of settings" if is_dataclass(branch) else "a single value"
            raise ValueError(f"invalid {path}{name}: expected {expected}, got {value!r}")
        if is_dataclass(branch):
            values[name] = apply_overrides(branch, value, path=f"{path}{name}.")
        else:
            values[name] = _validate_value(hints[name], value, f"{path}{name}")
    return replace(config, **values)  # type: ignore[type-var]


def merge_overrides(first: PlainMapping, second: PlainMapping) -> dict[str, Any]:
    """Merge two nested overrides; values of `second` win."""
    result = dict(first)
    for name, value in second.items():
        current = result.get(name)
        result[name] = (
            merge_overrides(current, value) if isinstance(current, Mapping) and isinstance(value, Mapping) else value
        )
    return result


def nest_overrides(assignments: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Convert dotted assignments such as `("replay.n_step", 1)` to nested overrides."""
    overrides: dict[str, Any] = {}
    for path, value in assignments:
        *branches, name = path.split(".")
        override: dict[str, Any] = {name: value}
        for branch in reversed(branches):
            override = {branch: override}
        overrides = merge_overrides(overrides, override)
    return overrides


def to_plain(config: Any) -> dict[str, Any]:
    """Convert a config to dicts, lists, strings and numbers, for JSON."""
    plain: dict[str, Any] = asdict(config)
    return plain


def from_plain(kind: type[ConfigT], plain: PlainMapping, *, path: str = "") -> ConfigT:
    """Build a config of type `kind` from the output of `to_plain`.

    Names and types are checked, because files can be edited or come from other versions.

    Raises:
        ValueError: A name is unknown in this version, or a value has the wrong type.

    """
    hints = get_type_hints(kind)
    if unknown := plain.keys() - hints.keys():
        raise ValueError(f"unknown setting {path}{sorted(unknown)[0]}: not defined in this version of manyview")
    values = {name: _validate_value(hints[name], value, f"{path}{name}") for name, value in plain.items()}
    return kind(**values)


def _validate_value(kind: Any, value: Any, path: str) -> Any:
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise ValueError(f"invalid {path}: expected a group of settings, got {value!r}")
        return from_plain(kind, value, path=f"{path}.")  # type: ignore[arg-type]
    options = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
    if value is None and type(None) in options:
        return None
    for option in options:
        if get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(value)
        if get_origin(option) is not None and value in get_args(option):  # a Literal
            return value
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):  # integers beyond the range of float
                return float(value)
        if option is int and isinstance(value, float) and value.is_integer():  # 1e6
            return int(value)
        if isinstance(option, type) and type(value) is option:
            return value
    choices = [str(choice) for option in options if get_origin(option) is Literal for choice in get_args(option)]
    kinds = [TYPE_NAMES.get(option) or option.__name__ for option in options if get_origin(option) is not Literal]
    close_matches = get_close_matches(str(value), choices, n=1)
    hint = f"; did you mean {close_matches[0]}?" if close_matches else ""
    raise ValueError(f"{path} must be {' or '.join([*choices, *kinds])}, got {value!r}{hint}")
