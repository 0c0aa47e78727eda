"""The runs below a folder, and how far each has come."""

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from time import time
from typing import Any, Literal

from manyview.report.metrics_file import read_records_reversed
from manyview.utils.files import open_regular
from manyview.utils.json_io import is_count, is_number, read_json
from manyview.utils.text import sanitize_text

CONFIG_FILE, MANIFEST_FILE, METRICS_FILE = "config.json", "manifest.json", "metrics.jsonl"
"""The files of a run, as `manyview.train.RunDir` names them."""

RunStatus = Literal["running", "finished", "stopped", "failed", "killed", "unknown", "broken"]


MAX_DEPTH = 32
"""Of folders in folders below which no run is looked for."""
MAX_NAME_CHARS = 200
"""Of a task or a method."""


class BrokenRunError(ValueError):
    """A folder that should hold a run and does not."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run, as its files tell it. What they do not tell is None."""

    path: Path
    state: RunStatus
    task: str | None = None
    method: str | None = None
    seed: int | None = None
    frames: int | None = None
    total_frames: int | None = None
    last_return: float | None = None
    """Of the last evaluation."""
    age_s: float | None = None
    """Since the last record."""
    reason: str | None = None
    """Why it failed, is broken, or is not known."""


def find_runs(directory: Path) -> list[Path]:
    """Every folder with a run's files, the folder itself among them; seed10 stands behind seed2."""
    paths = []
    deepest = len(directory.parts) + MAX_DEPTH
    for path, subdirectories, files in os.walk(directory):
        if {CONFIG_FILE, METRICS_FILE} & {*files, *subdirectories}:
            paths.append(Path(path))
            subdirectories.clear()  # checkpoints and videos hold no runs
        elif len(Path(path).parts) >= deepest:
            subdirectories.clear()
    return sorted(paths, key=_split_numbers)


def summarize_runs(directory: Path) -> Iterator[RunSummary]:
    """Of every run below a folder, in the order of their paths."""
    return map(summarize_run, find_runs(directory))


def summarize_run(path: Path) -> RunSummary:
    """What became of the run in a folder, from the end of its records. Never an error: a broken run says why."""
    try:
        return _read_summary(path)
    except BrokenRunError as error:
        return RunSummary(path=path, state="broken", reason=sanitize_text(error))


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a run as plain values, of whatever version; task, method and seed are there and can be shown."""
    config = _read_json_object(path / CONFIG_FILE)
    for name in ("task", "method"):
        if not isinstance(config.get(name), str):
            raise BrokenRunError(f"{CONFIG_FILE} has no {name}")
        if len(config[name]) > MAX_NAME_CHARS:
            raise BrokenRunError(f"{CONFIG_FILE} has a {name} of {len(config[name]):,} characters")
        config[name] = sanitize_text(config[name])
    if type(config.get("seed")) is not int or not 0 <= config["seed"] < 2**128:
        raise BrokenRunError(f"{CONFIG_FILE} has no seed")
    return config


@contextmanager
def convert_read_errors(name: str) -> Iterator[None]:
    """Turn whatever is wrong with one file of a run into a `BrokenRunError` that names it."""
    try:
        yield
    except BrokenRunError:
        raise
    except FileNotFoundError:
        raise BrokenRunError(f"there is no {name}") from None
    except (JSONDecodeError, UnicodeDecodeError):
        raise BrokenRunError(f"{name} is no JSON") from None
    except ValueError as error:
        raise BrokenRunError(f"{name}: {error}") from None
    except OSError as error:
        raise BrokenRunError(f"{name}: {error.strerror}" if error.strerror else str(error)) from None


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
    """The last record, and the last of an evaluation. None before the first is written."""
    if not os.path.lexists(metrics):
        return None, None
    last = next(read_records_reversed(metrics), None)
    if last is None and metrics.lstat().st_size > 0:
        raise BrokenRunError(f"{METRICS_FILE} holds no record")
    evaluations = read_records_reversed(metrics, containing=b"evaluation")
    return last, next((record for record in evaluations if record["kind"] == "evaluation"), None)


def _determine_state(path: Path, last: dict[str, Any] | None, manifest: dict[str, Any]) -> tuple[RunStatus, str | None]:
    if last is not None and last["kind"] == "end":
        state, reason = last.get("state"), last.get("reason")
        if state in ("finished", "stopped", "failed"):
            return state, None if reason is None else sanitize_text(reason)
        raise BrokenRunError(f"{METRICS_FILE} ends with a state {state!r}")
    if "finished" in manifest:  # written last, so a record of the end was there
        return "finished", None
    training, host = is_training(path), manifest.get("host")
    if training:
        return "running", None
    if training is None:
        return "unknown", f"the file {LOCK_FILE} cannot be read"
    if host != socket.gethostname():  # not every file system tells a machine what another one has locked
        return "unknown", sanitize_text(f"it ran on {host}")
    return "killed", None


def _read_json_object(path: Path) -> dict[str, Any]:
    with convert_read_errors(path.name):
        return read_json(path)


def _parse_count(value: object) -> int | None:
    return value if is_count(value) else None


def _parse_number(value: object) -> float | None:
    return float(value) if is_number(value) else None


def _split_numbers(path: Path) -> list[tuple[str, int]]:
    """Numbers in a path by their value."""
    pairs = re.findall(r"(\D*)(\d*)", str(path))
    return [(text, int(number or -1)) for text, number in pairs]


LOCK_FILE = "lock"
"""Held by whoever trains, as `manyview.train.RunFolder.hold` does; the system lets go of it however that one ends."""


def is_training(folder: Path) -> bool | None:
    """Return whether the lock of a folder is held, by whatever process or machine; None if it cannot be probed."""
    try:
        with open_regular(folder / LOCK_FILE) as lock:
            # Shared and let go at once: only a process that begins at this very moment meets it, and tries again.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False
