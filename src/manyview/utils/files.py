"""Safe reading and replacing of files at untrusted paths.

A path may be a link, a pipe or a device, and a file may be huge or fail.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from time import sleep
from typing import BinaryIO, TypeVar

TEMP_SUFFIX = ".unfinished"
"""Suffix of the name of an incomplete file or directory."""
TRANSIENT_ERRNOS = {errno.EIO, errno.ESTALE, errno.EINTR, errno.EAGAIN, errno.ETIMEDOUT}
"""Errors of a disk or file server that may disappear after a retry."""
RETRY_PAUSES_S = (0.05, 0.2, 1.0)
"""Pauses before each retry."""
CODE_SUFFIXES = {
    *(".bin", ".ckpt", ".h5", ".keras", ".npy", ".npz", ".pk", ".pkl", ".pt", ".pt2", ".pth"),
    *(".dll", ".dylib", ".exe", ".py", ".pyc", ".pyd", ".sh", ".so", ".egg", ".tar", ".whl", ".zip"),
}
"""Suffixes of files that can hold code. Nothing here would execute them; still, a folder with one is rejected."""

T = TypeVar("T")


def can_hold_code(name: str) -> bool:
    """Return whether a file can hold code, by the suffixes of its name."""
    return any(suffix.lower() in CODE_SUFFIXES for suffix in PurePosixPath(name).suffixes)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading without blocking.

    Raises `OSError` for a symbolic link, a pipe, a device or a directory.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(f"{path.name}: expected a file, got a symbolic link") from None
        raise
    if stat.S_ISREG(os.fstat(file).st_mode):
        return os.fdopen(file, "rb")
    os.close(file)
    raise OSError(f"{path.name}: expected a file, got a directory, a pipe or a device")


def read_bounded(path: Path, *, max_bytes: int) -> bytes:
    """Return the content of a regular file; `OSError` also if it has more than `max_bytes`."""
    return retry_transient(lambda: _read_bounded(path, max_bytes))


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
    """Open a file but no symbolic link, as an `opener` of `open`.

    Does not block on a pipe.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces `path`.

    The temporary path is in a new private directory beside `path`. For libraries that open files by name: they never
    write through a link or a pipe, and `path` has either its new or its previous content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".", suffix=TEMP_SUFFIX, dir=path.parent) as directory:
        temp_path = Path(directory) / path.name
        yield temp_path
        temp_path.replace(path)


def _read_bounded(path: Path, max_bytes: int) -> bytes:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(f"{path.name} is too large: expected at most {max_bytes:,} bytes, got {size:,}")
        return file.read(max_bytes)
