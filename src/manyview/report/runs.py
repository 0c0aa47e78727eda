"""The runs below a folder, and how far each has come."""

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

from manyview.report.alive import LOCK, is_training
from manyview.report.lines import newest_records
from manyview.utils.json_io import is_count, is_number, read_object
from manyview.utils.text import printable

CONFIG, MANIFEST, METRICS = "config.json", "manifest.json", "metrics.jsonl"
"""The files of a run, as `manyview.train.RunFolder` names them."""

State = Literal["running", "finished", "stopped", "failed", "killed", "unknown", "broken"]


MAX_DEPTH = 32
"""Of folders in folders below which no run is looked for."""
MAX_NAME_CHARS = 200
"""Of a task or a method."""


class BrokenRunError(ValueError):
    """A folder that should hold a run and does not."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, as its files tell it. What they do not tell is None."""

    path: Path
    state: State
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


def find_runs(folder: Path) -> list[Path]:
    """Every folder with a run's files, the folder itself among them; seed10 stands behind seed2."""
    found = []
    deepest = len(folder.parts) + MAX_DEPTH
    for path, folders, files in os.walk(folder):
        if {CONFIG, METRICS} & {*files, *folders}:
            found.append(Path(path))
            folders.clear()  # checkpoints and videos hold no runs
        elif len(Path(path).parts) >= deepest:
            folders.clear()
    return sorted(found, key=_natural)


def summaries(folder: Path) -> Iterator[Run]:
    """Of every run below a folder, in the order of their paths."""
    return map(summarise, find_runs(folder))


def summarise(path: Path) -> Run:
    """What became of the run in a folder, from the end of its records. Never an error: a broken run says why."""
    try:
        return _summary(path)
    except BrokenRunError as error:
        return Run(path=path, state="broken", reason=printable(error))


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a run as plain values, of whatever version; task, method and seed are there and can be shown."""
    config = _read_object(path / CONFIG)
    for name in ("task", "method"):
        if not isinstance(config.get(name), str):
            raise BrokenRunError(f"{CONFIG} has no {name}")
        if len(config[name]) > MAX_NAME_CHARS:
            raise BrokenRunError(f"{CONFIG} has a {name} of {len(config[name]):,} characters")
        config[name] = printable(config[name])
    if type(config.get("seed")) is not int or not 0 <= config["seed"] < 2**128:
        raise BrokenRunError(f"{CONFIG} has no seed")
    return config


@contextmanager
def broken_if_unreadable(name: str) -> Iterator[None]:
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


def _summary(path: Path) -> Run:
    config, manifest = read_config(path), _read_object(path / MANIFEST)
    schedule = config.get("schedule")
    total = schedule.get("frames") if isinstance(schedule, dict) else None
    with broken_if_unreadable(METRICS):
        last, evaluation = _last_records(path / METRICS)
        age_s = None if last is None else max(0.0, time() - (path / METRICS).lstat().st_mtime)
    state, reason = _state(path, last, manifest)
    return Run(
        path=path,
        state=state,
        task=config["task"],
        method=config["method"],
        seed=config["seed"],
        frames=_count((last or {"frames": 0}).get("frames")),
        total_frames=_count(total),
        last_return=_number((evaluation or {}).get("return")),
        age_s=age_s,
        reason=reason,
    )


def _last_records(metrics: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The last record, and the last of an evaluation. None before the first is written."""
    if not os.path.lexists(metrics):
        return None, None
    last = next(newest_records(metrics), None)
    if last is None and metrics.lstat().st_size > 0:
        raise BrokenRunError(f"{METRICS} holds no record")
    evaluations = newest_records(metrics, containing=b"evaluation")
    return last, next((record for record in evaluations if record["kind"] == "evaluation"), None)


def _state(path: Path, last: dict[str, Any] | None, manifest: dict[str, Any]) -> tuple[State, str | None]:
    if last is not None and last["kind"] == "end":
        state, reason = last.get("state"), last.get("reason")
        if state in ("finished", "stopped", "failed"):
            return state, None if reason is None else printable(reason)
        raise BrokenRunError(f"{METRICS} ends with a state {state!r}")
    if "finished" in manifest:  # written last, so a record of the end was there
        return "finished", None
    training, host = is_training(path), manifest.get("host")
    if training:
        return "running", None
    if training is None:
        return "unknown", f"the file {LOCK} cannot be read"
    if host != socket.gethostname():  # not every file system tells a machine what another one has locked
        return "unknown", printable(f"it ran on {host}")
    return "killed", None


def _read_object(path: Path) -> dict[str, Any]:
    with broken_if_unreadable(path.name):
        return read_object(path)


def _count(value: object) -> int | None:
    return value if is_count(value) else None


def _number(value: object) -> float | None:
    return float(value) if is_number(value) else None


def _natural(path: Path) -> list[tuple[str, int]]:
    """Numbers in a path by their value."""
    pairs = re.findall(r"(\D*)(\d*)", str(path))
    return [(text, int(number or -1)) for text, number in pairs]
