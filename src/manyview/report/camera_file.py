"""Figures of `manyview cameras` that are kept as `cameras.json` in a run directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manyview.report.runs import convert_read_errors
from manyview.report.statistics import EpisodeMean, estimate_episode_mean
from manyview.utils.atomic_io import write_atomic
from manyview.utils.json_io import dump_json, is_count, is_number, read_json
from manyview.utils.text import sanitize_text

CAMERAS_FILE, REPORTS_FIELD = "cameras.json", "reports"
MAX_REPORTS, MAX_SUBSETS, MAX_EPISODES = 10, 64, 10_000
"""Limits of a file; four cameras have 16 subsets."""


@dataclass(frozen=True, kw_only=True)
class CameraFigures:
    """Returns of a policy by the cameras that it sees."""

    frames: int
    """Simulator frames of training."""
    episodes: int
    subsets: Mapping[tuple[str, ...], EpisodeMean]
    """Return with each subset of the cameras; without any camera, that of random actions."""
    shapley: Mapping[str, EpisodeMean]
    """Return that each camera adds; empty if not all subsets were played."""
    losses: Mapping[str, EpisodeMean]
    """Return that is lost without each camera."""


def write_camera_file(path: Path, reports: Sequence[Mapping[str, Any]]) -> None:
    """Write the plain figures of `manyview cameras`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, [dump_json({REPORTS_FIELD: list(reports)})])


def read_camera_figures(run: Path) -> list[CameraFigures]:
    """Return the figures in a run directory; none if the cameras were not measured.

    Raises:
        BrokenRunError: The file is invalid.

    """
    path = run / CAMERAS_FILE
    try:
        path.lstat()
    except FileNotFoundError:
        return []
    with convert_read_errors(CAMERAS_FILE):
        try:
            reports = read_json(path)[REPORTS_FIELD]
            return [_parse(report) for report in reports[:MAX_REPORTS]]
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(
                f"expected the file of `manyview cameras RUN --out RUN/{CAMERAS_FILE}`, got {type(error).__name__}"
            ) from None


def _parse(report: Mapping[str, Any]) -> CameraFigures:
    if not is_count(report["frames"]) or len(report["subsets"]) > MAX_SUBSETS:
        raise ValueError(f"expected a number of frames and at most {MAX_SUBSETS} subsets")
    returns = {tuple(map(_clean, subset["cameras"])): _parse_returns(subset["returns"]) for subset in report["subsets"]}
    everything = max(returns, key=len)
    losses = {}
    for camera in everything:
        without = returns.get(tuple(name for name in everything if name != camera))
        if without is not None and len(without) == len(returns[everything]):
            losses[camera] = estimate_episode_mean(returns[everything] - without)
    shapley = report.get("shapley") or {}
    return CameraFigures(
        frames=report["frames"],
        episodes=len(returns[everything]),
        subsets={subset: estimate_episode_mean(values) for subset, values in returns.items()},
        shapley={_clean(camera): _parse_estimate(values) for camera, values in shapley.items()},
        losses=losses,
    )


def _parse_returns(values: object) -> np.ndarray[Any, np.dtype[np.float64]]:
    if not isinstance(values, list) or not 0 < len(values) <= MAX_EPISODES or not all(map(is_number, values)):
        raise ValueError(f"returns must be 1 to {MAX_EPISODES:,} numbers")
    return np.array(values, np.float64)


def _parse_estimate(values: Sequence[Any]) -> EpisodeMean:
    if not isinstance(values, list) or len(values) != 3 or not all(map(is_number, values)):
        raise ValueError("a Shapley value must be a mean and the ends of its interval")
    return EpisodeMean(*values)


def _clean(name: object) -> str:
    return sanitize_text(name, max_chars=80)
