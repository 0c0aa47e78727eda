"""Packages that only some of manyview needs."""

from importlib import import_module
from typing import Any


def import_optional(module: str, *, extra: str) -> Any:
    """The module; if it is not installed, an error that names the command that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'{error.name} is not installed: pip install "manyview[{extra}]"') from error
