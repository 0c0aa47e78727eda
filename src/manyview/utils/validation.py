"""Checks of config values; all raise `SettingError`."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

MAX_UNITS = 4_096
"""Maximum units of a layer, several times the widest networks of the field."""


class SettingError(ValueError):
    """Invalid value of a setting. Configs raise it with the field's name, to which loaders add the group."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason

    def add_prefix(self, prefix: str) -> "SettingError":
        """Return the error with the full name of the setting, such as `replay.batch_size`."""
        return SettingError(f"{prefix}{self.name}", self.reason)


@contextmanager
def add_prefix(path: str) -> Iterator[None]:
    """Add the group's name to the setting's name in a `SettingError`."""
    try:
        yield
    except SettingError as error:
        raise error.add_prefix(path) from None


def check_choices(config: Any) -> None:
    """Check that every `Literal` field has one of its values, or None if it may."""
    for name, kind in get_type_hints(type(config)).items():
        value, options = getattr(config, name), get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        choices = [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]
        if choices and value not in choices and not (value is None and NoneType in options):
            raise SettingError(name, f"expected one of {', '.join(map(str, choices))}, got {value!r}")


def check_at_least(config: Any, minimum: float, *names: str) -> None:
    """Check that the named fields are at least `minimum`."""
    for name in names:
        if not getattr(config, name) >= minimum:  # rejects NaN too
            raise SettingError(name, f"expected at least {minimum}, got {getattr(config, name)}")


def check_at_most(config: Any, maximum: float, *names: str) -> None:
    """Check that the named fields are at most `maximum`.

    A config may be untrusted: sizes are checked before anything is allocated.
    """
    for name in names:
        if not getattr(config, name) <= maximum:
            raise SettingError(name, f"expected at most {maximum}, got {getattr(config, name)}")


def check_positive(config: Any, *names: str) -> None:
    """Check that the named fields are finite and above 0."""
    for name in names:
        if not 0 < getattr(config, name) < float("inf"):
            raise SettingError(name, f"expected more than 0, got {getattr(config, name)}")


def check_unit_interval(config: Any, *names: str) -> None:
    """Check that the named fields are from 0 to 1."""
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise SettingError(name, f"expected 0 to 1, got {getattr(config, name)}")
