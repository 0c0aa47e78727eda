"""Every file operation below some folders, met before it happens: to count it, to fail it, to die of it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

BY_NUMBER = ("write", "pwrite", "fsync", "ftruncate")
BY_PATH = ("open", "rename", "mkdir", "unlink", "rmdir")
WRITES = ("write", "pwrite")


class Operation(NamedTuple):
    name: str
    """As `os` has it; an `open` that may make a file is a `create`."""
    path: Path


Handler = Callable[[Operation], Callable[[], None] | None]
"""May raise instead of the operation. What it returns is called when half of a write is done."""


@contextmanager
def intercept_operations(folders: list[Path], meet: Handler) -> Iterator[None]:
    """While this lasts, whatever Python does in these folders, in any thread, is met first."""
    real = {name: getattr(os, name) for name in (*BY_NUMBER, *BY_PATH)}
    inside = [str(folder.resolve()) for folder in folders]

    def replaced(name: str) -> Callable[..., Any]:
        def operation(target: Any, *args: Any, **kwargs: Any) -> Any:
            path = _path(target, kwargs.get("dir_fd", kwargs.get("src_dir_fd")))
            if not any(path == folder or path.startswith(folder + os.sep) for folder in inside):
                return real[name](target, *args, **kwargs)
            creates = name == "open" and (args[0] if args else kwargs["flags"]) & os.O_CREAT
            afterwards = meet(Operation("create" if creates else name, Path(path)))
            if afterwards is not None and name in WRITES:
                real[name](target, args[0][: len(args[0]) // 2], *args[1:])
                afterwards()
            return real[name](target, *args, **kwargs)

        return operation

    for name in real:
        setattr(os, name, replaced(name))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def _path(target: Any, folder: int | None) -> str:
    if isinstance(target, int):
        return os.readlink(f"/proc/self/fd/{target}")  # noqa: PTH115
    path = os.fspath(target)
    beginning = "" if folder is None else _path(folder, None)
    # The path of a file that is not there yet: only its folder can be resolved.
    parent, name = os.path.split(os.path.join(beginning, path))  # noqa: PTH118
    return os.path.join(os.path.realpath(parent), name)  # noqa: PTH118
