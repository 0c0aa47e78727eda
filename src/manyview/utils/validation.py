"""Checks that configs make of their own values."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

MAX_UNITS = 4_096
"""Of a layer: several times what the widest networks of the field have."""


def check_choices(config: Any) -> None:
    """A misspelt choice must not pass for another one."""
    for name, kind in get_type_hints(type(config)).items():
        if get_origin(kind) is Literal and getattr(config, name) not in get_args(kind):
            raise ValueError(f"expected {name} to be one of {list(get_args(kind))}, got {getattr(config, name)!r}")


def check_at_least(config: Any, minimum: float, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= minimum:  # nor what is no number
            raise ValueError(f"expected {name} >= {minimum}, got {getattr(config, name)}")


def check_at_most(config: Any, most: float, *names: str) -> None:
    """Bound sizes before anything is built by them: a config may come with a run from elsewhere."""
    for name in names:
        if not getattr(config, name) <= most:
            raise ValueError(f"expected {name} <= {most}, got {getattr(config, name)}")


def check_positive(config: Any, *names: str) -> None:
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"expected {name} > 0, got {getattr(config, name)}")


def check_unit_interval(config: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise ValueError(f"expected {name} from 0 to 1, got {getattr(config, name)}")
