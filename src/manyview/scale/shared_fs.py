"""Folders that processes on other machines must see too: NFS, Lustre, or one machine."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep
from typing import TypeVar

from manyview.utils.atomic_io import remove


@contextmanager
def create_marker(directory: Path) -> Iterator[Path]:
    """A sign in the folder, for others to look for: on a disk of their own they would write what nobody reads again."""
    directory.mkdir(parents=True, exist_ok=True)
    marker = directory / f".seen-{token_hex(8)}"
    marker.touch()
    try:
        yield marker
    finally:
        remove(marker)


def check_marker(marker: Path) -> None:
    if not marker.exists():
        raise OSError(f"{marker.parent} is another folder on this machine: put it on a disk that all machines see")


def enter_directory(directory: Path) -> None:
    """Where the command was given, if it is here too: what a user's environment opens is found as there."""
    if directory.is_dir():
        os.chdir(directory)


LOCK_TIMEOUT_S = 30.0
"""What a killed driver had started may live a little longer; nobody else trains in its folders."""

T = TypeVar("T")


def retry_while_locked(start: Callable[[], T]) -> T:
    """What `start` gives, once no other process holds the folder of its run."""
    deadline_s = monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return start()
        except FileExistsError:
            if monotonic() > deadline_s:
                raise
            sleep(1.0)
