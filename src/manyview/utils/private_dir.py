"""Temporary directories private to the user; those of killed processes are removed later."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

SHORT_PARENT = "/tmp"  # noqa: S108
"""Parent directory if the path would be too long."""


@contextmanager
def make_private_directory(parent: str, prefix: str, *, max_chars: int) -> Iterator[Path]:
    """Yield an empty directory of mode 0700 in `parent` and remove it on exit.

    Directories with this prefix whose process was killed are removed first. If the path would be longer than
    `max_chars`, the directory is created in `SHORT_PARENT`: socket paths have at most 107 characters.
    """
    if len(parent) + len(f"/{prefix}12345678") > max_chars:
        parent = SHORT_PARENT
    for abandoned in Path(parent).glob(f"{prefix}*"):
        if (lock := _lock(abandoned)) is not None:
            rmtree(abandoned, ignore_errors=True)
            os.close(lock)
    while (lock := _lock(path := Path(mkdtemp(prefix=prefix, dir=parent)))) is None:
        pass  # another process considered the new directory abandoned and removes it
    try:
        yield path
    finally:
        rmtree(path, ignore_errors=True)
        os.close(lock)


def _lock(directory: Path) -> int | None:
    """Return a descriptor that locks a directory of this user, or None.

    None if it does not exist, is locked, or belongs to another user.
    """
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        with suppress(OSError):
            flock(descriptor, LOCK_EX | LOCK_NB)
            if os.fstat(descriptor).st_uid == os.getuid() and os.path.samestat(os.fstat(descriptor), directory.lstat()):
                return descriptor
        os.close(descriptor)
    return None
