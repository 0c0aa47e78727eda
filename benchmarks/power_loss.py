"""What a disk holds after a power loss, at any moment of a run.

Of a file the bytes at its last fsync survive, of a folder the names at its last fsync: POSIX promises no more.
Whatever was written, made, renamed or removed since is lost or, by the toss of a coin for each file and folder, not.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from os import open as open_descriptor  # the real one, while `watched` has put its own in its place
from pathlib import Path
from random import Random
from threading import RLock

from benchmarks.file_operations import Operation, intercept_operations


class Disk:
    """A folder as the disk below it has it, if somebody tells of every fsync."""

    def __init__(self, root: Path) -> None:
        self._descriptors: dict[int, int] = {}
        """By inode. As long as it is open, its number is not given to another file."""
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._root = self._hold(root)
        self.fsync(root)

    def fsync(self, path: Path) -> None:
        """Take note that a file or folder is flushed."""
        if path.exists():  # what was removed meanwhile is lost anyway
            inode = self._hold(path)
            if path.is_dir():
                self._names[inode] = self._current_names(inode)
            else:
                self._contents[inode] = self._current_content(inode)

    def write_to(self, target: Path, luck: Random | None = None) -> None:
        """Write what is left after a power loss now; with `luck`, some of what was not flushed too."""
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

    def _hold(self, path: Path | str, *, folder: int | None = None) -> int:
        descriptor = open_descriptor(path, os.O_RDONLY, dir_fd=folder)
        inode = os.fstat(descriptor).st_ino
        if inode in self._descriptors:
            os.close(descriptor)
        return self._descriptors.setdefault(inode, descriptor) and inode

    def _current_names(self, inode: int) -> dict[str, int]:
        folder = self._descriptors[inode]
        found = {}
        for name in os.listdir(folder):  # noqa: PTH208
            try:
                found[name] = self._hold(name, folder=folder)
            except FileNotFoundError:  # another thread has just removed it
                continue
        return found

    def _current_content(self, inode: int) -> bytes:
        descriptor = self._descriptors[inode]
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


@contextmanager
def power_losses(root: Path, moments: Collection[int], images: Path, luck: Random | None = None) -> Iterator[None]:
    """Write below `images` what a power loss before each of these operations in `root`, and one at the end, leaves."""
    disk, numbers, lock = Disk(root), count(), RLock()

    def meet(operation: Operation) -> None:
        with lock:
            if (number := next(numbers)) in moments:
                disk.write_to(images / str(number), luck)
            if operation.name == "fsync":
                disk.fsync(operation.path)

    try:
        with intercept_operations([root], meet):
            yield
        disk.write_to(images / str(next(numbers)), luck)
    finally:
        disk.close()
