"""Everything that a report shows of one run, read from its directory."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyview.report.camera_file import CameraFigures, read_camera_figures
from manyview.report.comparison import list_settings, list_versions
from manyview.report.curves import Curve, read_curve
from manyview.report.metrics_file import read_records
from manyview.report.runs import (
    MANIFEST_FILE,
    METRICS_FILE,
    BrokenRunError,
    RunStatus,
    convert_read_errors,
    read_config,
    summarize_run,
)
from manyview.utils.json_io import is_number, read_json

FloatArray = NDArray[np.float64]
Series = tuple[FloatArray, FloatArray]
"""Frames [points] and values [points]."""

METERS = ("std", "rank", "share")
"""Diagnostics with a value for each view, named such as `std/front`."""
SCALARS = ("discriminator_accuracy", "chance", "beta", "contrast", "reward_int")
MAX_SERIES = 64
"""Limit of diagnostics of one run; eight views have 29."""
MAX_NAME_CHARS = 100
"""Limit of the name of a diagnostic, view included."""
MAX_RECORDS = 600
"""Records of training that are kept; of more, every second one is left out."""
MAX_VIDEO_FILES = 10_000
VIDEOS_DIR = "videos"
VIDEO_NAME = re.compile(r"([0-9]{1,18})\.mp4")


@dataclass(frozen=True, kw_only=True)
class Video:
    """Video of an evaluation in a run directory."""

    path: Path
    frames: int
    """Simulator frames of training."""


@dataclass(frozen=True, kw_only=True)
class RunMaterial:
    """State, returns, diagnostics, settings and videos of one run."""

    name: str
    """Path below the common directory of all runs, or another name that identifies the run."""
    state: RunStatus
    reason: str | None = None
    """Reason for the state, or for a part that could not be read."""
    curve: Curve
    """Returns over simulator frames."""
    timed_curve: Curve
    """The same over seconds since the start of the run."""
    diagnostics: Mapping[str, Series] = field(default_factory=dict)
    settings: Mapping[str, Any]
    """All settings by dotted name."""
    versions: Mapping[str, Any]
    """Software and hardware by name."""
    command: str
    """Command that trains the run again."""
    videos: tuple[Video, ...] = ()
    """In the order of training."""
    cameras: tuple[CameraFigures, ...] = ()

    @property
    def last_return(self) -> float | None:
        """Mean return of the last evaluation; None without any."""
        return float(self.curve.returns[-1]) if len(self.curve.returns) else None

    @property
    def seconds(self) -> float | None:
        """Wall-clock time until the last evaluation."""
        return float(self.timed_curve.x[-1]) if len(self.timed_curve.x) else None


@dataclass(frozen=True)
class BrokenRun:
    """Run without a readable config or records."""

    name: str
    reason: str


def read_material(path: Path, *, name: str) -> RunMaterial:
    """Read a run directory.

    Raises:
        BrokenRunError: Its config or records are missing or invalid.

    """
    curve = read_curve(path, "frames")
    config, summary = read_config(path), summarize_run(path)
    reasons = [] if summary.reason is None else [summary.reason]
    try:
        cameras = read_camera_figures(path)
    except BrokenRunError as error:
        cameras = []
        reasons.append(str(error))
    return RunMaterial(
        name=name,
        state=summary.state,
        reason="; ".join(reasons) or None,
        curve=curve,
        timed_curve=read_curve(path, "seconds"),
        diagnostics=read_diagnostics(path),
        settings=list_settings(config),
        versions=list_versions(_read_manifest(path)),
        command=_format_command(path, config),
        videos=tuple(find_videos(path)),
        cameras=tuple(cameras),
    )


def read_diagnostics(path: Path) -> dict[str, Series]:
    """Return the series of `METERS` and `SCALARS` in a run directory."""
    series: dict[str, list[tuple[float, float]]] = {}
    with convert_read_errors(METRICS_FILE):
        for record in _thin_out(
            record
            for record in read_records(path / METRICS_FILE, containing=b"train")
            if record["kind"] == "train" and is_number(record.get("frames"))
        ):
            for name, value in record.items():
                is_new = name not in series and len(series) == MAX_SERIES
                if is_diagnostic(name) and not is_new and is_number(value):
                    series.setdefault(name, []).append((record["frames"], value))
    return {name: _to_series(points) for name, points in series.items()}


def find_videos(path: Path) -> list[Video]:
    """Return the videos of evaluations in a run directory; those behind links are left out."""
    directory = path / VIDEOS_DIR
    if directory.is_symlink() or not directory.is_dir():
        return []
    videos = []
    with os.scandir(directory) as entries:
        for _, entry in zip(range(MAX_VIDEO_FILES), entries, strict=False):
            match = VIDEO_NAME.fullmatch(entry.name)
            if match is not None and entry.is_file(follow_symlinks=False):
                videos.append(Video(path=directory / entry.name, frames=int(match[1])))
    return sorted(videos, key=lambda video: video.frames)


def is_diagnostic(name: str) -> bool:
    """Return whether a metric of training is one that a report shows."""
    return name in SCALARS or (name.partition("/")[0] in METERS and len(name) <= MAX_NAME_CHARS)


def _thin_out(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every n-th record, with the smallest n that leaves at most `MAX_RECORDS`."""
    kept: list[dict[str, Any]] = []
    stride = 1
    for number, record in enumerate(records):
        if number % stride == 0:
            kept.append(record)
            if len(kept) > MAX_RECORDS:
                kept, stride = kept[::2], 2 * stride
    return kept


def _to_series(points: list[tuple[float, float]]) -> Series:
    """Return points in the order of their frames; of a point that was reached twice, the later value."""
    frames, values = np.array(points, np.float64).T
    frames, last = np.unique(frames[::-1], return_index=True)
    return frames, values[::-1][last]


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest; empty if it is missing or invalid, which `summarize_run` reports."""
    try:
        return read_json(path / MANIFEST_FILE)
    except (OSError, ValueError):
        return {}


def _format_command(path: Path, config: Mapping[str, Any]) -> str:
    """Return the command of a run; for a run of another version, the one with its config file."""
    from manyview.report.train_command import build_train_command, strip_paths  # imports torch
    from manyview.training import RunDir

    fallback = f"manyview train {config['task']} --config config.json"
    try:
        return build_train_command(strip_paths(RunDir(path).read_config()), config_file="config.json").text
    except (ValueError, TypeError, OSError):
        return fallback
