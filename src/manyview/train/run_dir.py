"""The folder of a run. Everything in it can be read without manyview.

config.json       every setting, as it was resolved
manifest.json     where and with what it ran: versions, commit, device, threads, views, parameters
metrics.jsonl     a record a line: kind, frames, steps, updates, seconds and figures
videos/           the first episode of evaluations
checkpoints/      safetensors and JSON, named by frames
replay/           the steps that a checkpoint needs, until the run has finished
tensorboard/      the records once more
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from time import sleep
from typing import IO, Any

from manyview.config.overrides import from_plain, to_plain
from manyview.config.schema import RunConfig
from manyview.utils.atomic_io import make_directory, remove, rename, write_atomic
from manyview.utils.files import TEMP_SUFFIX, open_no_follow
from manyview.utils.json_io import dump_json, read_json
from manyview.utils.text import sanitize_text

MAX_NAME_BYTES = 255
"""Of a file's name, on every usual file system."""
MAX_CHECKED_DEPTH = 2
"""Of folders below those of a run that it writes to, shards' segments being the deepest; others it only removes."""
LOCK_RETRIES, LOCK_PAUSE_S = 5, 0.05
"""`manyview runs` takes the lock for a moment to see whether it is free."""


class SaveFailedError(RuntimeError):
    """The last checkpoint or the end of a run could not be written."""

    def __init__(self, what: str, reason: object) -> None:
        super().__init__(f"{what} could not be written: {reason}. Once that is fixed, the same command resumes")


class RunMovedError(SaveFailedError):
    """The directory of a run was moved, removed or replaced while it was trained in."""

    def __init__(self, path: Path) -> None:
        RuntimeError.__init__(
            self,
            f"run directory was moved: expected the one this process locked at {path}, got none or another one. "
            "Nothing is saved there; the same command with --out of its new place resumes",
        )


@dataclass(frozen=True)
class RunDir:
    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def manifest_file(self) -> Path:
        return self.path / "manifest.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def videos_dir(self) -> Path:
        return self.path / "videos"

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def replay_dir(self) -> Path:
        return self.path / "replay"

    @property
    def tensorboard_dir(self) -> Path:
        return self.path / "tensorboard"

    @property
    def has_run(self) -> bool:
        return self.config_file.exists()

    def check_no_links(self) -> None:
        """All that a run reads, writes and removes is its own: `ValueError` if something here leads elsewhere."""
        for entry in chain(
            _iter_entries(self.path), *(_iter_entries(folder, MAX_CHECKED_DEPTH) for folder in self._directories)
        ):
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                raise ValueError(
                    f"{entry.path} is neither a file nor a folder: a run has no links, pipes or devices in it"
                )

    @property
    def _directories(self) -> tuple[Path, ...]:
        """All that a run writes to; Weights & Biases has links in its own."""
        return self.videos_dir, self.checkpoints_dir, self.replay_dir, self.tensorboard_dir

    def lock(self) -> IO[str]:
        """Until this is closed no other process trains here; the system lets go of it however this one ends."""
        make_directory(self.path)
        file = self.path / "lock"
        try:
            return _open_locked(file)
        except BlockingIOError:
            raise FileExistsError(f"another process is training in {self.path}") from None
        except OSError as error:
            raise OSError(
                f"{file} cannot be locked: {error.strerror}. It must be a file that you may write, where locks work"
            ) from None

    def check_held(self, lock: IO[str]) -> None:
        """Raise `RunMovedError` unless this is still the directory that was locked: a new one is another run's."""
        if not self._is_held(lock):
            raise RunMovedError(self.path)

    def _is_held(self, lock: IO[str]) -> bool:
        try:
            return os.path.samestat((self.path / "lock").stat(), os.fstat(lock.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a file server that does not answer has moved nothing
            return True

    def move_aside(self) -> Path:
        """Give the run another name, so that its folder is free; `FileExistsError` while it is being trained in."""
        self.lock().close()
        names = (self.path.with_name(f"{self.path.name}.old{number}") for number in count(1))
        new_path = next(path for path in names if not os.path.lexists(path))
        rename(self.path, new_path)
        return new_path

    def initialize(self, config: RunConfig, manifest: dict[str, Any]) -> None:
        """Take the folder for a run."""
        make_directory(self.path)
        for left in self.videos_dir.glob(f"*{TEMP_SUFFIX}"):  # by a kill
            remove(left)
        self.write_manifest(manifest)
        write_atomic(self.config_file, [dump_json(to_plain(config))])  # last: from here on there is a run

    @property
    def is_finished(self) -> bool:
        return self.manifest_file.exists() and "finished" in self.read_manifest()

    def mark_finished(self) -> None:
        self.write_manifest({**self.read_manifest(), "finished": format_now()})

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        write_atomic(self.manifest_file, [dump_json(manifest)])

    def read_config(self) -> RunConfig:
        if not self.config_file.is_file():
            raise FileNotFoundError(f"{self.path} holds no run: there is no {self.config_file.name}")
        try:
            return from_plain(RunConfig, read_json(self.config_file))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.config_file}: {error}") from None

    def read_manifest(self) -> dict[str, Any]:
        try:
            return read_json(self.manifest_file)
        except ValueError as error:
            raise ValueError(f"{self.manifest_file}: {error}") from None


def _open_locked(path: Path) -> IO[str]:
    """Open a file, made if need be, that no other process has locked; `BlockingIOError` if one has."""
    file = open(path, "a", opener=open_no_follow)  # noqa: SIM115
    try:
        for _ in range(LOCK_RETRIES):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            sleep(LOCK_PAUSE_S)
        raise BlockingIOError
    except BaseException:
        file.close()
        raise


def default_run_path(config: RunConfig) -> Path:
    task = validate_directory_name(config.task.replace("/", "-").replace(":", "-"))
    return Path("runs") / task / validate_directory_name(config.method) / f"seed{config.seed}"


def validate_directory_name(text: str) -> str:
    """Return `text`, a single part of a path; ValueError if it would lead elsewhere or cannot be a name."""
    if text in ("", ".", "..") or "/" in text or not text.isprintable() or len(text.encode()) > MAX_NAME_BYTES:
        raise ValueError(
            f"invalid folder name: expected one name of at most {MAX_NAME_BYTES} bytes without '/', got "
            f"{sanitize_text(repr(text))}. Rename the task, the variant or the values that it is made of"
        )
    return text


def _iter_entries(folder: Path, levels: int = 1) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder, and so many levels below it; nothing where there is no folder."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if levels > 1 and entry.is_dir(follow_symlinks=False):
                yield from _iter_entries(Path(entry.path), levels - 1)


def format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
