"""Imports of optional packages."""

from importlib import import_module
from typing import Any


def import_optional(module: str, *, extra: str) -> Any:
    """Import a module; `ModuleNotFoundError` with the install command if it is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{error.name} is not installed. Install it: pip install "manyview[{extra}]"'
        ) from error
