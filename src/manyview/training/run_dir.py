"""Run directory: all files of one run, readable without manyview.

config.json       every setting, resolved
manifest.json     software and machine: versions, commit, device, threads, views, parameters
metrics.jsonl     one record per line: kind, frames, steps, updates, seconds and metrics
videos/           first episodes of evaluations
checkpoints/      safetensors and JSON, named by frames
replay/           segments of the steps that checkpoints need
tensorboard/      the records as TensorBoard events
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from shlex import quote
from time import sleep
from typing import IO, Any

from manyview.config.files import name_file, read_config_file
from manyview.config.overrides import to_plain
from manyview.config.schema import RunConfig
from manyview.training.checkpoint import FORMAT
from manyview.utils.atomic_io import make_directory, remove, rename, write_atomic
from manyview.utils.files import TEMP_SUFFIX, open_no_follow
from manyview.utils.json_io import dump_json, read_json
from manyview.utils.output_paths import check_output_directory
from manyview.utils.text import sanitize_text

MAX_NAME_BYTES = 255
"""Longest file name on all common file systems."""
MAX_CHECKED_DEPTH = 2
"""Depth of the check for links below the run's subdirectories.

A run writes no deeper than the segments of shards; deeper directories it only removes.
"""
SHARED_FIELD = "shared"
"""Field of the manifest that only shared runs have."""
LOCK_RETRIES, LOCK_PAUSE_S = 5, 0.05
"""Attempts to lock, and the pause between them: `manyview runs` takes the lock briefly to test it."""


class SaveFailedError(RuntimeError):
    """The last checkpoint or the end of a run could not be written."""

    def __init__(self, what: str, reason: object) -> None:
        super().__init__(f"{what} could not be written: {reason}. Fix this, then resume with the same command")


class RunMovedError(SaveFailedError):
    """The run directory was moved, removed or replaced during training."""

    def __init__(self, path: Path) -> None:
        RuntimeError.__init__(
            self,
            f"run directory was moved: expected the one this process locked at {path}, got none or another one. "
            "Nothing is saved there. Resume with the same command and --out of its new path",
        )


@dataclass(frozen=True)
class RunDir:
    """Paths, lock, config and manifest of one run."""

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

    def find_last_video(self) -> Path | None:
        """Return the newest video of an evaluation; None if there is none."""
        return max((path for path in self.videos_dir.glob("*.mp4") if path.stem.isdecimal()), default=None)

    def check_path(self) -> None:
        """Raise `NotADirectoryError` if a file is where the directory should be."""
        check_output_directory(self.path)

    def check_no_links(self) -> None:
        """Raise `ValueError` for links, pipes and devices: a run must not read, write or remove files elsewhere."""
        for entry in chain(
            _iter_entries(self.path), *(_iter_entries(path, MAX_CHECKED_DEPTH) for path in self._directories)
        ):
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                raise ValueError(
                    f"{entry.path} is neither a file nor a directory: expected no links, pipes or devices in a run "
                    "directory. Remove it"
                )

    @property
    def _directories(self) -> tuple[Path, ...]:
        """Subdirectories that a run writes to, except that of Weights & Biases, which contains links."""
        return self.videos_dir, self.checkpoints_dir, self.replay_dir, self.tensorboard_dir

    def lock(self) -> IO[str]:
        """Lock the directory against other processes until the returned file is closed or the process ends.

        Raises `FileExistsError` if another process holds the lock, `OSError` if locks do not work here.
        """
        make_directory(self.path)
        file = self.path / "lock"
        try:
            return _open_locked(file)
        except BlockingIOError:
            raise FileExistsError(f"another process is training in {self.path}. Wait for it or stop it") from None
        except OSError as error:
            raise OSError(
                f"{file} cannot be locked: {error.strerror}. Use a writable file on a file system that supports locks"
            ) from None

    def check_held(self, lock: IO[str]) -> None:
        """Raise `RunMovedError` unless the path is still the locked directory; a new one belongs to another run."""
        if not self._is_held(lock):
            raise RunMovedError(self.path)

    def _is_held(self, lock: IO[str]) -> bool:
        try:
            return os.path.samestat((self.path / "lock").stat(), os.fstat(lock.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # an unreachable file server does not mean that the directory moved
            return True

    def move_aside(self) -> Path:
        """Rename the run and return its new path; `FileExistsError` if a process trains in it."""
        self.lock().close()
        names = (self.path.with_name(f"{self.path.name}.old{number}") for number in count(1))
        new_path = next(path for path in names if not os.path.lexists(path))
        rename(self.path, new_path)
        return new_path

    def initialize(self, config: RunConfig, manifest: dict[str, Any]) -> None:
        """Write manifest and config, and remove temporary files of killed processes."""
        make_directory(self.path)
        for path in self.videos_dir.glob(f"*{TEMP_SUFFIX}"):
            remove(path)
        self.write_manifest(manifest)
        self.write_config(config)  # last: `has_run` is true from here on

    @property
    def is_finished(self) -> bool:
        return self.manifest_file.exists() and "finished" in self.read_manifest()

    @property
    def is_shared(self) -> bool:
        """True for a folder of `manyview card`: the weights of one checkpoint without the state of training."""
        return self.manifest_file.exists() and SHARED_FIELD in self.read_manifest()

    def check_not_shared(self) -> None:
        """Raise `ValueError` for a shared run, which cannot be trained on."""
        if self.is_shared:
            raise ValueError(
                f"{self.path} holds a shared run, weights without the state of training: expected a run directory. "
                f"Start a new run from its weights with `manyview train TASK --from {quote(str(self.path))}`"
            )

    def mark_finished(self) -> None:
        """Add the time of the end to the manifest."""
        self.write_manifest({**self.read_manifest(), "finished": format_now()})

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Replace the manifest atomically."""
        write_atomic(self.manifest_file, [dump_json(manifest)])

    def write_config(self, config: RunConfig) -> None:
        """Replace the config atomically."""
        write_atomic(self.config_file, [dump_json(to_plain(config))])

    def read_config(self) -> RunConfig:
        """Return the run's config; `FileNotFoundError` without a run, `ValueError` if it is invalid."""
        if not self.config_file.is_file():
            hint = f". `manyview runs {quote(str(self.path))}` lists the runs below it" if self.path.is_dir() else ""
            raise FileNotFoundError(f"{self.path} holds no run: expected {self.config_file.name} in it, got none{hint}")
        with name_file(self.config_file):
            if "method" in read_json(self.config_file):
                raise ValueError(
                    f"written by an earlier version of manyview: expected a run of format {FORMAT}, got format 2 or 1, "
                    "with `method`. Use that version, or start again with --fresh"
                )
        return read_config_file(self.config_file)

    def read_manifest(self) -> dict[str, Any]:
        """Return the run's manifest; `ValueError` if it is invalid."""
        try:
            return read_json(self.manifest_file)
        except ValueError as error:
            raise ValueError(f"{self.manifest_file}: {error}") from None


def _open_locked(path: Path) -> IO[str]:
    """Create or open a file and lock it; `BlockingIOError` if another process has locked it."""
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
    """Return `runs/<task>/<method>/seed<seed>`."""
    task = validate_directory_name(re.sub(r"[/:?&]", "-", config.task))
    return Path("runs") / task / validate_directory_name(config.method) / f"seed{config.seed}"


def validate_directory_name(text: str) -> str:
    """Return `text` if it is a valid name of a single directory, else raise ValueError."""
    if text in ("", ".", "..") or "/" in text or not text.isprintable() or len(text.encode()) > MAX_NAME_BYTES:
        raise ValueError(
            f"invalid directory name: expected one name of at most {MAX_NAME_BYTES} bytes without '/', got "
            f"{sanitize_text(repr(text))}. Rename the task, the variant or the values in it"
        )
    return text


def _iter_entries(directory: Path, levels: int = 1) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory down to `levels` levels; none if it does not exist."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            yield entry
            if levels > 1 and entry.is_dir(follow_symlinks=False):
                yield from _iter_entries(Path(entry.path), levels - 1)


def format_now() -> str:
    """Return the current UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
