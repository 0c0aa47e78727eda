"""Folders that processes on other machines must see too: NFS, Lustre, or one machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from manyview.data.durable import remove


@contextmanager
def seen_by_all(folder: Path) -> Iterator[Path]:
    """A sign in the folder, for others to look for: on a disk of their own they would write what nobody reads again."""
    folder.mkdir(parents=True, exist_ok=True)
    sign = folder / f".seen-{token_hex(8)}"
    sign.touch()
    try:
        yield sign
    finally:
        remove(sign)


def look_for(sign: Path) -> None:
    if not sign.exists():
        raise OSError(f"{sign.parent} is another folder on this machine: put it on a disk that all machines see")


def go_to(folder: Path) -> None:
    """Where the command was given, if it is here too: what a user's environment opens is found as there."""
    if folder.is_dir():
        os.chdir(folder)
