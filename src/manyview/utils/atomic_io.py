"""Atomic writes: after a crash of the machine a file or directory is complete or absent.

New content is written under a temporary name, flushed to disk and renamed; then the parent directory, which holds the
name, is flushed. Every step that can fail or be interrupted is a call of `os`, which the crash tests intercept.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from manyview.utils.files import TEMP_SUFFIX, retry_transient

Bytes = bytes | memoryview


def write_atomic(path: Path, parts: Iterable[Bytes]) -> None:
    """Write a file atomically, replacing an existing one."""
    temp_path = path.with_name(path.name + TEMP_SUFFIX)
    remove(temp_path)
    try:
        write_new_file(temp_path, parts)
    except OSError:
        temp_path.unlink(missing_ok=True)  # frees space on a full disk
        raise
    rename(temp_path, path)


def write_new_file(path: Path, parts: Iterable[Bytes]) -> None:
    """Write a new file and flush it; its name is durable only after its directory is flushed.

    Raises `FileExistsError` if the path exists, since an existing link or pipe would receive the bytes.
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
    """Create a directory and its parents, and flush their names to disk."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        fsync_directory(path.parent)


@contextmanager
def create_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder, which becomes `path` at the end, and vanishes after an error.

    Raises `FileExistsError` if `path` exists.
    """
    if path.exists() or path.is_symlink():
        raise FileExistsError(f"{path} exists: expected a new folder. Choose another --out")
    parent = path.absolute().parent
    make_directory(parent)
    with TemporaryDirectory(prefix=".", suffix=TEMP_SUFFIX, dir=parent) as temp_parent:
        folder = Path(temp_parent) / path.name
        make_directory(folder)
        yield folder
        rename(folder, path.absolute())


def rename(source: Path, target: Path) -> None:
    """Rename `source` to `target` durably, the last step of an atomic write."""
    os.rename(source, target)  # noqa: PTH104
    fsync_directory(target.parent)


def fsync_directory(directory: Path) -> None:
    """Flush the names in a directory to disk."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def remove(path: Path) -> None:
    """Remove a file or directory if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def list_directory(directory: Path) -> list[Path]:
    """Return the entries of a directory, empty if it does not exist.

    Unlike `glob`, any other failure raises `OSError`.
    """
    try:
        return retry_transient(lambda: list(directory.iterdir()))
    except FileNotFoundError:
        return []
