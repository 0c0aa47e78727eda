"""Search for runs in a directory, and summaries of their state and progress."""

import fcntl
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from time import time
from typing import Any, Literal

from manyview.config.method import format_method
from manyview.report.metrics_file import read_records_reversed
from manyview.utils.files import open_regular
from manyview.utils.json_io import is_count, is_number, read_json
from manyview.utils.text import sanitize_text

CONFIG_FILE, MANIFEST_FILE, METRICS_FILE = "config.json", "manifest.json", "metrics.jsonl"
"""Files of a run, as `manyview.training.RunDir` names them."""
LOCK_FILE = "lock"
"""File that the training process locks (`RunDir.lock`); the system releases it when the process ends."""
MAX_DEPTH = 32
"""Depth of nested directories at which the search for runs stops."""
MAX_NAME_CHARS = 200
"""Limit of the name of a task or method, in characters."""

RunStatus = Literal["running", "finished", "stopped", "failed", "killed", "unknown", "broken"]


class BrokenRunError(ValueError):
    """A file of a run is missing or invalid."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """State of one run according to its files; None marks unknown values."""

    path: Path
    state: RunStatus
    task: str | None = None
    method: str | None = None
    seed: int | None = None
    frames: int | None = None
    """Simulator frames so far."""
    total_frames: int | None = None
    """Simulator frames of the whole run (`schedule.frames`)."""
    last_return: float | None = None
    """Mean return of the last evaluation."""
    age_s: float | None = None
    """Seconds since the last record."""
    reason: str | None = None
    """Reason for the state failed, broken or unknown."""


def find_runs(directory: Path) -> list[Path]:
    """Return all run directories in and below a directory in natural order (seed2 before seed10)."""
    paths = []
    max_parts = len(directory.parts) + MAX_DEPTH
    for path, subdirectories, files in os.walk(directory):
        if {CONFIG_FILE, METRICS_FILE} & {*files, *subdirectories}:
            paths.append(Path(path))
            subdirectories.clear()  # checkpoints and videos contain no runs
        elif len(Path(path).parts) >= max_parts:
            subdirectories.clear()
    return sorted(paths, key=_split_numbers)


def find_all_runs(directories: Sequence[Path]) -> list[Path]:
    """Return the run directories in and below several directories, each once.

    Raises:
        ValueError: There is no directory, or no run in one of them.

    """
    if not directories:
        raise ValueError("no runs: expected at least one directory, got none. `manyview runs` lists them")
    paths: dict[Path, Path] = {}
    for directory in directories:
        run_paths = find_runs(directory)
        if not run_paths:
            raise ValueError(
                f"no run in or below {directory}" if directory.is_dir() else f"directory does not exist: {directory}"
            )
        paths |= {path.resolve(): path for path in run_paths}  # `plot runs runs/*` lists each run twice
    return list(paths.values())


def summarize_runs(directory: Path) -> Iterator[RunSummary]:
    """Summarize all runs in and below a directory, in the order of `find_runs`."""
    return map(summarize_run, find_runs(directory))


def summarize_run(path: Path) -> RunSummary:
    """Summarize a run from its last records; a broken run gives a summary with the reason instead of an error."""
    try:
        return _read_summary(path)
    except BrokenRunError as error:
        return RunSummary(path=path, state="broken", reason=sanitize_text(error))


def read_config(path: Path) -> dict[str, Any]:
    """Read the settings of a run of any version as plain values; task, method and seed are checked and printable.

    Raises:
        BrokenRunError: The file is missing or invalid.

    """
    config = _read_json_object(path / CONFIG_FILE)
    config.setdefault("method", _derive_method(config))
    for name in ("task", "method"):
        if not isinstance(config.get(name), str):
            raise BrokenRunError(
                f"{CONFIG_FILE} has no valid {name}: expected a string, got {type(config.get(name)).__name__}"
            )
        if len(config[name]) > MAX_NAME_CHARS:
            raise BrokenRunError(
                f"{CONFIG_FILE} has a {name} that is too long: expected at most {MAX_NAME_CHARS} characters, got "
                f"{len(config[name]):,}"
            )
        config[name] = sanitize_text(config[name])
    if type(config.get("seed")) is not int or not 0 <= config["seed"] < 2**128:
        raise BrokenRunError(f"{CONFIG_FILE} has no valid seed: expected an integer from 0 to 2**128 - 1")
    return config


def _derive_method(config: dict[str, Any]) -> str | None:
    """Return the method by the names of the parts, which need not be installed; None if a name is missing."""
    parts = [config.get(kind) for kind in ("agent", "representation", "bonus")]
    names = [part.get("name") if isinstance(part, dict) else None for part in parts]
    return format_method(*names) if all(isinstance(name, str) for name in names) else None  # type: ignore[arg-type]


@contextmanager
def convert_read_errors(name: str) -> Iterator[None]:
    """Convert errors of reading the file `name` of a run to a `BrokenRunError` that names it."""
    try:
        yield
    except BrokenRunError:
        raise
    except FileNotFoundError:
        raise BrokenRunError(f"{name} does not exist") from None
    except (JSONDecodeError, UnicodeDecodeError):
        raise BrokenRunError(f"{name} is not valid JSON") from None
    except ValueError as error:
        raise BrokenRunError(f"{name}: {error}") from None
    except OSError as error:
        raise BrokenRunError(f"{name}: {error.strerror}" if error.strerror else str(error)) from None


def is_training(run_path: Path) -> bool | None:
    """Return whether a process on any machine holds the lock of a run directory; None if it cannot be probed."""
    try:
        with open_regular(run_path / LOCK_FILE) as lock:
            # Shared and released at once: only a process that starts at this moment meets it, and it retries.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _read_summary(path: Path) -> RunSummary:
    config, manifest = read_config(path), _read_json_object(path / MANIFEST_FILE)
    schedule = config.get("schedule")
    total = schedule.get("frames") if isinstance(schedule, dict) else None
    with convert_read_errors(METRICS_FILE):
        last, evaluation = _read_last_records(path / METRICS_FILE)
        age_s = None if last is None else max(0.0, time() - (path / METRICS_FILE).lstat().st_mtime)
    state, reason = _determine_state(path, last, manifest)
    return RunSummary(
        path=path,
        state=state,
        task=config["task"],
        method=config["method"],
        seed=config["seed"],
        frames=_parse_count((last or {"frames": 0}).get("frames")),
        total_frames=_parse_count(total),
        last_return=_parse_number((evaluation or {}).get("return")),
        age_s=age_s,
        reason=reason,
    )


def _read_last_records(metrics: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the last record and the last evaluation record, None if there is none yet."""
    if not os.path.lexists(metrics):
        return None, None
    last = next(read_records_reversed(metrics), None)
    if last is None and metrics.lstat().st_size > 0:
        raise BrokenRunError(f"{METRICS_FILE} contains no valid record")
    evaluations = read_records_reversed(metrics, containing=b"evaluation")
    return last, next((record for record in evaluations if record["kind"] == "evaluation"), None)


def _determine_state(path: Path, last: dict[str, Any] | None, manifest: dict[str, Any]) -> tuple[RunStatus, str | None]:
    if last is not None and last["kind"] == "end":
        state, reason = last.get("state"), last.get("reason")
        if state in ("finished", "stopped", "failed"):
            return state, None if reason is None else sanitize_text(reason)
        raise BrokenRunError(
            f"{METRICS_FILE} has an invalid end state: expected finished, stopped or failed, got {state!r}"
        )
    if "finished" in manifest:  # written last, so the run did record its end
        return "finished", None
    training, host = is_training(path), manifest.get("host")
    if training:
        return "running", None
    if training is None:
        return "unknown", f"the file {LOCK_FILE} cannot be read"
    if host != socket.gethostname():  # not every file system shows the locks of other machines
        return "unknown", sanitize_text(f"the run was on {host}")
    return "killed", None


def _read_json_object(path: Path) -> dict[str, Any]:
    with convert_read_errors(path.name):
        return read_json(path)


def _parse_count(value: object) -> int | None:
    return value if is_count(value) else None


def _parse_number(value: object) -> float | None:
    return float(value) if is_number(value) else None


def _split_numbers(path: Path) -> list[tuple[str, int]]:
    """Return a sort key that compares numbers in a path by value."""
    pairs = re.findall(r"(\D*)(\d*)", str(path))
    return [(text, int(number or -1)) for text, number in pairs]
