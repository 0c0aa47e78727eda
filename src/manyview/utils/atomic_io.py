"""Files and folders that are whole or not there, also after a crash of the machine.

What is new is written beside its place, flushed to the disk, and renamed; then the folder that holds it is flushed,
since that is where a name lives. Every step that can fail or be cut off goes through `os` of this file.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from manyview.utils.files import TEMP_SUFFIX, retry_transient

Bytes = bytes | memoryview


def write_atomic(path: Path, parts: Iterable[Bytes]) -> None:
    """A file with these bytes, in the place of an older one."""
    temp_path = path.with_name(path.name + TEMP_SUFFIX)
    remove(temp_path)
    try:
        write_new_file(temp_path, parts)
    except OSError:
        temp_path.unlink(missing_ok=True)  # a full disk needs the room
        raise
    rename(temp_path, path)


def write_new_file(path: Path, parts: Iterable[Bytes]) -> None:
    """A file with these bytes on the disk. Its name is not safe until its folder is flushed.

    It must be new: whatever had this name, a link or a pipe too, would get the bytes.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def make_directory(path: Path) -> None:
    """A folder whose name is on the disk, with those above it."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        fsync_directory(path.parent)


def rename(source: Path, target: Path) -> None:
    """The last step: from here on `target` is there, whole."""
    os.rename(source, target)  # noqa: PTH104
    fsync_directory(target.parent)


def fsync_directory(directory: Path) -> None:
    """The names in a folder, to the disk."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def remove(path: Path) -> None:
    """A file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def list_directory(directory: Path) -> list[Path]:
    """Return what is in a folder, nothing if it is not there; unlike `glob`, any other failure raises `OSError`."""
    try:
        return retry_transient(lambda: list(directory.iterdir()))
    except FileNotFoundError:
        return []
