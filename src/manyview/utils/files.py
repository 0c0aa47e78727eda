"""Open, read and replace files where something foreign may lie: links, pipes, devices, huge or failing files."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import BinaryIO, TypeVar

TEMP_SUFFIX = ".unfinished"
"""What a name ends with until it is whole."""
TRANSIENT_ERRNOS = {errno.EIO, errno.ESTALE, errno.EINTR, errno.EAGAIN, errno.ETIMEDOUT}
"""Errors of a disk or a file server that a moment later may be gone."""
RETRY_PAUSES_S = (0.05, 0.2, 1.0)

T = TypeVar("T")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read; `OSError` if it is a link, a pipe, a device or a folder. Never waits."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(f"{path.name} is a link, expected a file") from None
        raise
    if stat.S_ISREG(os.fstat(file).st_mode):
        return os.fdopen(file, "rb")
    os.close(file)
    raise OSError(f"{path.name} is a folder, a pipe or a device, expected a file")


def read_bounded(path: Path, *, max_bytes: int) -> bytes:
    """Return what a regular file holds; `OSError` also if that is more than `max_bytes`."""
    return retry_transient(lambda: _read_bounded(path, max_bytes))


def _read_bounded(path: Path, max_bytes: int) -> bytes:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(f"{path.name} has {size:,} bytes, at most {max_bytes:,} are expected")
        return file.read(max_bytes)


def retry_transient(read: Callable[[], T]) -> T:
    """Call `read` again after short pauses while it fails with a transient `OSError`."""
    for pause_s in RETRY_PAUSES_S:
        try:
            return read()
        except OSError as error:
            if error.errno not in TRANSIENT_ERRNOS:
                raise
        sleep(pause_s)
    return read()


def open_no_follow(path: str, flags: int) -> int:
    """Open a file but no link, and never wait for a pipe's other end; an `opener` of `open`."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a name in a new private folder beside `path`; the file written there replaces whatever `path` is.

    For writers that open files by name: they never meet a link or a pipe, and `path` is whole or as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".", suffix=TEMP_SUFFIX, dir=path.parent) as directory:
        temp_path = Path(directory) / path.name
        yield temp_path
        temp_path.replace(path)
