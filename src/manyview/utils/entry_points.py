"""Entry points of installed packages, which are imported when a part of them is first used."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


@cache  # reading the metadata of all installed packages takes tens of milliseconds
def _read_entry_points(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def find_entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, without importing their packages.

    If two packages use one name, the first on `sys.path` wins, as for modules.
    """
    return {entry_point.name: entry_point for entry_point in reversed(_read_entry_points(group))}


def find_package(group: str, name: str) -> str | None:
    """Return the package with the entry point `name`; None if no package has it."""
    entry_point = find_entry_points(group).get(name)
    return None if entry_point is None or entry_point.dist is None else entry_point.dist.name


def load_entry_point(entry_point: EntryPoint) -> Any:
    """Import the object of an entry point.

    Raises:
        ValueError: The package raised an error; the message names it.

    """
    try:
        return entry_point.load()
    except Exception as error:  # of a third party: any failure to import
        raise ValueError(
            f"{describe_entry_point(entry_point)} cannot be loaded: {type(error).__name__}: {error}. Update or "
            "uninstall the package"
        ) from error


def describe_entry_point(entry_point: EntryPoint) -> str:
    """Return the name of an entry point and its package, for error messages."""
    package = f" of package {entry_point.dist.name}" if entry_point.dist else ""
    return f"{entry_point.group} {entry_point.name!r} ({entry_point.value}){package}"
