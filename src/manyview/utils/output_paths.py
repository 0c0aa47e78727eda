"""Checks of the paths that a command will write to, made before the work whose result they receive."""

from collections.abc import Sequence
from pathlib import Path

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
VIDEO_SUFFIXES = (".mp4", ".gif")
SHEET_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def check_output_file(path: Path, suffixes: Sequence[str]) -> None:
    """Check that a file with one of the suffixes can be written at `path`; missing directories are no error.

    Raises:
        ValueError: The suffix is another one.
        OSError: A directory is at `path`, or a file where one of its directories should be.

    """
    if path.suffix.lower() not in suffixes:
        expected = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise ValueError(f"unknown format of {path}: expected a file that ends with {expected}, got {path.name!r}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory: expected a file to write")
    check_output_directory(path.parent)


def check_output_directory(path: Path) -> None:
    """Raise `NotADirectoryError` if `path` or one of its parents is a file."""
    for directory in (path, *path.parents):
        if directory.exists() and not directory.is_dir():
            raise NotADirectoryError(f"{directory} is a file: expected a directory. Choose another path, or move it")
