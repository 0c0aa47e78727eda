"""Intercept file operations inside given directories: to count them, to make them fail or to kill the process."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

BY_DESCRIPTOR = ("write", "pwrite", "fsync", "ftruncate")
BY_PATH = ("open", "rename", "mkdir", "unlink", "rmdir")
WRITES = ("write", "pwrite")


class Operation(NamedTuple):
    name: str
    """Name of the function in `os`; an `open` that may create a file is a `create`."""
    path: Path


Handler = Callable[[Operation], Callable[[], None] | None]
"""Called before the operation; may raise in its place. A returned function is called after half of a write."""


@contextmanager
def intercept_operations(directories: list[Path], handle: Handler) -> Iterator[None]:
    """Call `handle` before every file operation of Python in these directories, in any thread."""
    real = {name: getattr(os, name) for name in (*BY_DESCRIPTOR, *BY_PATH)}
    roots = [str(directory.resolve()) for directory in directories]

    def make_replacement(name: str) -> Callable[..., Any]:
        def operation(target: Any, *args: Any, **kwargs: Any) -> Any:
            path = _resolve(target, kwargs.get("dir_fd", kwargs.get("src_dir_fd")))
            if not any(path == root or path.startswith(root + os.sep) for root in roots):
                return real[name](target, *args, **kwargs)
            creates = name == "open" and (args[0] if args else kwargs["flags"]) & os.O_CREAT
            interrupt = handle(Operation("create" if creates else name, Path(path)))
            if interrupt is not None and name in WRITES:
                real[name](target, args[0][: len(args[0]) // 2], *args[1:])
                interrupt()
            return real[name](target, *args, **kwargs)

        return operation

    for name in real:
        setattr(os, name, make_replacement(name))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def _resolve(target: Any, dir_fd: int | None) -> str:
    if isinstance(target, int):
        return os.readlink(f"/proc/self/fd/{target}")  # noqa: PTH115
    path = os.fspath(target)
    base = "" if dir_fd is None else _resolve(dir_fd, None)
    # The file may not exist yet: only its directory can be resolved.
    parent, name = os.path.split(os.path.join(base, path))  # noqa: PTH118
    return os.path.join(os.path.realpath(parent), name)  # noqa: PTH118
