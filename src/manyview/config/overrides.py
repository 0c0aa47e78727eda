"""Overrides of nested config dataclasses, and their conversion to and from plain values.

A field annotated with a `Registry` holds the config of one of its parts; the plain form names the part as `name`.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from manyview.methods.registry import Registry
from manyview.utils.text import suggest
from manyview.utils.validation import add_prefix

ConfigT = TypeVar("ConfigT")
PlainMapping = Mapping[str, Any]
NAME = "name"
"""Key of a part's name in its plain form."""
TYPE_NAMES = {type(None): "None", tuple[str, ...]: "a list"}
"""Names of types in error messages, where they differ from `__name__`."""


def apply_overrides(config: ConfigT, overrides: PlainMapping, *, path: str = "") -> ConfigT:
    """Return a copy of `config` with the values of `overrides`.

    A nested mapping overrides values of the settings group it names; `path` prefixes names in error messages. A `name`
    in the group of a part selects another part, with its defaults.

    Raises:
        ValueError: A name is unknown, or a value has the wrong type.

    """
    hints = _get_hints(type(config))
    check_names(overrides, hints, path)
    values = {}
    for name, value in overrides.items():
        full_name, current = f"{path}{name}", getattr(config, name)
        registry = _find_registry(hints[name])
        if registry is not None and isinstance(value, Mapping) and NAME in value:
            current = _switch_part(registry, current, value[NAME])
            value = {key: part for key, part in value.items() if key != NAME}
        if is_dataclass(current) and value is not None:
            check_group(value, full_name)
            values[name] = apply_overrides(current, value, path=f"{full_name}.")
        else:
            values[name] = _validate_value(hints[name], value, full_name)
    with add_prefix(path):
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
    """Convert a config to dicts, lists, strings and numbers, for JSON and TOML."""
    hints, plain = _get_hints(type(config)), dict[str, Any]()
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            registry = _find_registry(hints[field.name])
            plain[field.name] = {} if registry is None else {NAME: registry.find_name(value)}
            plain[field.name] |= to_plain(value)
        else:
            plain[field.name] = list(value) if isinstance(value, tuple) else value
    return plain


def from_plain(kind: type[ConfigT], plain: PlainMapping, *, path: str = "") -> ConfigT:
    """Build a config of type `kind` from the output of `to_plain`.

    Names and types are checked, because files can be edited or come from other versions.

    Raises:
        ValueError: A name is unknown in this version, a part is not installed, or a value has the wrong type.

    """
    hints = _get_hints(kind)
    check_names(plain, hints, path)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in plain and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"missing setting {path}{field.name}: expected a value, got none")
    values = {name: _validate_value(hints[name], value, f"{path}{name}") for name, value in plain.items()}
    with add_prefix(path):
        return kind(**values)


def check_overrides(kind: type[Any], overrides: PlainMapping, *, path: str = "") -> None:
    """Check names and types of overrides of a config of type `kind`.

    Raises:
        ValueError: A name is unknown, or a value has the wrong type.

    """
    check_group(overrides, path.removesuffix("."))
    hints = _get_hints(kind)
    check_names(overrides, hints, path)
    for name, value in overrides.items():
        options = _get_options(hints[name])
        group = next((option for option in options if isinstance(option, type) and is_dataclass(option)), None)
        if group is not None and value is not None:
            check_overrides(group, value, path=f"{path}{name}.")
        else:
            _validate_value(hints[name], value, f"{path}{name}")


def check_group(value: Any, path: str) -> None:
    """Raise `ValueError` if a value is not a mapping of settings."""
    if not isinstance(value, Mapping):
        raise ValueError(f"invalid {path}: expected a group of settings, got {value!r}")


def _get_hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def check_names(plain: PlainMapping, hints: Collection[str], path: str = "") -> None:
    """Raise `ValueError` for a name that is not in `hints`."""
    if plain.keys() <= set(hints):
        return
    from manyview.config.setting_names import suggest_setting  # imports the run config, whose parts may import this

    for name in sorted(plain.keys() - set(hints)):
        expected = ", ".join(sorted(hints)) or "no settings"
        hint = suggest_setting(str(name), hints, path) or "."
        raise ValueError(
            f"unknown setting {path}{name}: expected one of {expected}{hint} `manyview config show` lists all settings"
        )


def _find_registry(hint: Any) -> Registry | None:
    """Return the registry that a field is annotated with."""
    if get_origin(hint) is not Annotated:
        return None
    return next((extra for extra in hint.__metadata__ if isinstance(extra, Registry)), None)


def _switch_part(registry: Registry, current: Any, name: Any) -> Any:
    return current if registry.find_name(current) == name else registry[str(name)].config()


def _validate_value(kind: Any, value: Any, path: str) -> Any:
    registry = _find_registry(kind)
    if registry is not None:
        return _validate_part(registry, value, path)
    options = _get_options(kind)
    if value is None and type(None) in options:
        return None
    for option in options:
        if is_dataclass(option):
            check_group(value, path)
            return from_plain(option, value, path=f"{path}.")  # type: ignore[arg-type]
        if get_origin(option) is tuple and (items := _validate_items(get_args(option)[0], value)) is not None:
            return items
        if get_origin(option) is not None and value in get_args(option):  # a Literal
            return value
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):  # integers beyond the range of float
                return float(value)
        if option is int and isinstance(value, float) and value.is_integer():  # 1e6
            return int(value)
        if isinstance(option, type) and type(value) is option:
            return value
    raise _make_type_error(options, value, path)


def _validate_items(kind: Any, value: Any) -> tuple[Any, ...] | None:
    """Return the items of a list or a single item as a tuple, None if they are invalid; cameras may be numbers."""
    items = value if isinstance(value, list | tuple) else [value]
    items = [str(item) if kind is str and type(item) is int else item for item in items]
    return tuple(items) if all(type(item) is kind for item in items) else None


def _get_options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)


def _validate_part(registry: Registry, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping) or not isinstance(value.get(NAME), str):
        raise ValueError(f"invalid {path}: expected the settings of a {registry.kind} with its name, got {value!r}")
    settings = {name: setting for name, setting in value.items() if name != NAME}
    return from_plain(registry[value[NAME]].config, settings, path=f"{path}.")


def _make_type_error(options: Iterable[Any], value: Any, path: str) -> ValueError:
    choices = [str(choice) for option in options if get_origin(option) is Literal for choice in get_args(option)]
    kinds = [TYPE_NAMES.get(option) or option.__name__ for option in options if get_origin(option) is not Literal]
    return ValueError(f"{path} must be {' or '.join([*choices, *kinds])}, got {value!r}{suggest(value, choices)}")
