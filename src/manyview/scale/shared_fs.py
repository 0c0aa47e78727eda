"""Directories on file systems shared by several machines, such as NFS or Lustre, and their locks."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep
from typing import TypeVar

from manyview.utils.atomic_io import remove

T = TypeVar("T")

LOCK_TIMEOUT_S = 30.0
"""Time for which processes of a killed driver may outlive it and hold the locks of its run directories."""


@contextmanager
def create_marker(directory: Path) -> Iterator[Path]:
    """Create a temporary file by which `check_marker` in other processes detects a directory that is not shared."""
    directory.mkdir(parents=True, exist_ok=True)
    marker = directory / f".seen-{token_hex(8)}"
    marker.touch()
    try:
        yield marker
    finally:
        remove(marker)


def check_marker(marker: Path) -> None:
    """Raise an `OSError` if the directory of the marker is not shared with the process that created it."""
    if not marker.exists():
        raise OSError(
            f"{marker.parent} is not shared with this machine: expected the file {marker.name} in it. Move it to a "
            "file system that all machines share"
        )


def enter_directory(directory: Path) -> None:
    """Change to the working directory of the command if it exists here, so that relative paths work as there."""
    if directory.is_dir():
        os.chdir(directory)


def retry_while_locked(start: Callable[[], T]) -> T:
    """Return the result of `start`, retried for `LOCK_TIMEOUT_S` while another process locks the run directory.

    Raises:
        FileExistsError: The directory is still locked after that time.

    """
    deadline_s = monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return start()
        except FileExistsError:
            if monotonic() > deadline_s:
                raise
            sleep(1.0)
