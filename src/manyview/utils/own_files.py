"""Write files in folders where something else may have their names: links, pipes, devices."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

UNFINISHED = ".unfinished"
"""What a name ends with until it is whole, as those of `data/durable` do."""


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a name in a new private folder beside `path`; the file written there replaces whatever `path` is.

    For writers that open files by name: they never meet a link or a pipe, and `path` is whole or as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".", suffix=UNFINISHED, dir=path.parent) as folder:
        written = Path(folder) / path.name
        yield written
        written.replace(path)


def open_own(path: str, flags: int) -> int:
    """Open a file but no link, and never wait for a pipe's other end; an `opener` of `open`."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
