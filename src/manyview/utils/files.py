"""Files of foreign origin."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


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
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            size = os.fstat(file.fileno()).st_size
            raise OSError(f"{path.name} has {size:,} bytes, at most {max_bytes:,} are expected")
    return content
