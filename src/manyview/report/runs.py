"""The runs below a folder, and how far each has come."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any, Literal

from manyview.report.alive import still_there
from manyview.report.lines import newest_records

CONFIG, MANIFEST, METRICS = "config.json", "manifest.json", "metrics.jsonl"
"""The files of a run, as `manyview.train.RunFolder` names them."""

State = Literal["running", "finished", "stopped", "failed", "killed", "unknown", "broken"]


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
    for path, folders, files in os.walk(folder):
        if {CONFIG, METRICS} & set(files):
            found.append(Path(path))
            folders.clear()  # checkpoints and videos hold no runs
    return sorted(found, key=_natural)


def summaries(folder: Path) -> Iterator[Run]:
    """Of every run below a folder, in the order of their paths."""
    return map(summarise, find_runs(folder))


def summarise(path: Path) -> Run:
    """What became of the run in a folder, from the end of its records. Never an error: a broken run says why."""
    try:
        return _summary(path)
    except (BrokenRunError, OSError) as error:
        return Run(path=path, state="broken", reason=str(error))


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a run as plain values, of whatever version; task, method and seed are there."""
    config = _read_object(path / CONFIG)
    for name, kind in (("task", str), ("method", str), ("seed", int)):
        if not isinstance(config.get(name), kind):
            raise BrokenRunError(f"{CONFIG} has no {name}")
    return config


def _summary(path: Path) -> Run:
    config, manifest = read_config(path), _read_object(path / MANIFEST)
    schedule = config.get("schedule")
    total = schedule.get("frames") if isinstance(schedule, dict) else None
    last, evaluation = _last_records(path / METRICS)
    state, reason = _state(last, manifest)
    return Run(
        path=path,
        state=state,
        task=config["task"],
        method=config["method"],
        seed=config["seed"],
        frames=0 if last is None else _number(last, "frames", int),
        total_frames=total if isinstance(total, int) else None,
        last_return=None if evaluation is None else _number(evaluation, "return", float),
        age_s=None if last is None else max(0.0, time() - (path / METRICS).stat().st_mtime),
        reason=reason,
    )


def _last_records(metrics: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The last record, and the last of an evaluation. None before the first is written."""
    last = None
    if not metrics.exists():
        return None, None
    for record in newest_records(metrics):
        last = last or record
        if record["kind"] == "evaluation":
            return last, record
    if last is None and metrics.stat().st_size > 0:
        raise BrokenRunError(f"{METRICS} holds no record")
    return last, None


def _state(last: dict[str, Any] | None, manifest: dict[str, Any]) -> tuple[State, str | None]:
    if last is not None and last["kind"] == "end":
        state, reason = last.get("state"), last.get("reason")
        if state in ("finished", "stopped", "failed"):
            return state, None if reason is None else str(reason)
        raise BrokenRunError(f"{METRICS} ends with a state {state!r}")
    if "finished" in manifest:  # written last, so a record of the end was there
        return "finished", None
    match still_there(manifest):
        case True:
            return "running", None
        case False:
            return "killed", None
        case None:
            return "unknown", f"it ran on {manifest.get('host')}"


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BrokenRunError(f"there is no {path.name}") from None
    except ValueError:
        raise BrokenRunError(f"{path.name} is no JSON") from None
    if not isinstance(found, dict):
        raise BrokenRunError(f"{path.name} is no JSON object")
    return found


def _number(record: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = record.get(name)
    return kind(value) if isinstance(value, int | float) else None


def _natural(path: Path) -> list[tuple[str, int]]:
    """Numbers in a path by their value."""
    pairs = re.findall(r"(\D*)(\d*)", str(path))
    return [(text, int(number or -1)) for text, number in pairs]
