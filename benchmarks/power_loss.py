"""Simulate the disk contents after a power loss at any moment of a run.

POSIX guarantees only the bytes of a file and the names in a directory as of their last fsync. Later writes, creations,
renames and removals are lost or, at random for each file and directory, survive.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from os import open as open_descriptor  # the original, while `intercept_operations` replaces it
from pathlib import Path
from random import Random
from threading import RLock

from benchmarks.file_operations import Operation, intercept_operations


class Disk:
    """Durable contents of a directory; the caller reports every fsync."""

    def __init__(self, root: Path) -> None:
        self._descriptors: dict[int, int] = {}
        """Descriptors by inode. An open descriptor keeps the inode number from being reused."""
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._root = self._hold(root)
        self.fsync(root)

    def fsync(self, path: Path) -> None:
        """Record the current contents of a file or directory as durable."""
        if path.exists():  # a removed file is lost anyway
            inode = self._hold(path)
            if path.is_dir():
                self._names[inode] = self._current_names(inode)
            else:
                self._contents[inode] = self._current_content(inode)

    def write_to(self, target: Path, luck: Random | None = None) -> None:
        """Write the contents after a power loss now; with `luck`, some of the unflushed contents survive."""
        self._write(self._root, target, luck)

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def _write(self, inode: int, target: Path, luck: Random | None) -> None:
        survives = luck is not None and luck.random() < 0.5
        if os.path.isdir(self._descriptors[inode]):  # noqa: PTH112
            target.mkdir()
            names = self._current_names(inode) if survives else self._names.get(inode, {})
            for name, child in names.items():
                self._write(child, target / name, luck)
        else:
            target.write_bytes(self._current_content(inode) if survives else self._contents.get(inode, b""))

    def _hold(self, path: Path | str, *, dir_fd: int | None = None) -> int:
        descriptor = open_descriptor(path, os.O_RDONLY, dir_fd=dir_fd)
        inode = os.fstat(descriptor).st_ino
        if inode in self._descriptors:
            os.close(descriptor)
        return self._descriptors.setdefault(inode, descriptor) and inode

    def _current_names(self, inode: int) -> dict[str, int]:
        descriptor = self._descriptors[inode]
        inodes = {}
        for name in os.listdir(descriptor):  # noqa: PTH208
            try:
                inodes[name] = self._hold(name, dir_fd=descriptor)
            except FileNotFoundError:  # removed by another thread
                continue
        return inodes

    def _current_content(self, inode: int) -> bytes:
        descriptor = self._descriptors[inode]
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


@contextmanager
def power_losses(root: Path, moments: Collection[int], images: Path, luck: Random | None = None) -> Iterator[None]:
    """Write to `images` the contents of `root` after a power loss before each given operation, and at the end."""
    disk, numbers, lock = Disk(root), count(), RLock()

    def handle(operation: Operation) -> None:
        with lock:
            if (number := next(numbers)) in moments:
                disk.write_to(images / str(number), luck)
            if operation.name == "fsync":
                disk.fsync(operation.path)

    try:
        with intercept_operations([root], handle):
            yield
        disk.write_to(images / str(next(numbers)), luck)
    finally:
        disk.close()
