"""Checks of config values; all raise `ValueError`."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

MAX_UNITS = 4_096
"""Maximum units of a layer, several times the widest networks of the field."""


def check_choices(config: Any) -> None:
    """Check that every `Literal` field has one of its values."""
    for name, kind in get_type_hints(type(config)).items():
        if get_origin(kind) is Literal and getattr(config, name) not in get_args(kind):
            raise ValueError(f"expected {name} to be one of {list(get_args(kind))}, got {getattr(config, name)!r}")


def check_at_least(config: Any, minimum: float, *names: str) -> None:
    """Check that the named fields are at least `minimum`."""
    for name in names:
        if not getattr(config, name) >= minimum:  # rejects NaN too
            raise ValueError(f"expected {name} >= {minimum}, got {getattr(config, name)}")


def check_at_most(config: Any, maximum: float, *names: str) -> None:
    """Check that the named fields are at most `maximum`.

    A config may be untrusted: sizes are checked before anything is allocated.
    """
    for name in names:
        if not getattr(config, name) <= maximum:
            raise ValueError(f"expected {name} <= {maximum}, got {getattr(config, name)}")


def check_positive(config: Any, *names: str) -> None:
    """Check that the named fields are above 0."""
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"expected {name} > 0, got {getattr(config, name)}")


def check_unit_interval(config: Any, *names: str) -> None:
    """Check that the named fields are from 0 to 1."""
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise ValueError(f"expected {name} from 0 to 1, got {getattr(config, name)}")
