"""Published results, for comparison with learning curves."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyview.utils.json_io import is_count, is_number, read_json
from manyview.utils.text import sanitize_text

MAX_ROWS, MAX_SEEDS = 1_000, 100
"""Limits of rows and of seeds per row; each takes milliseconds to draw."""


@dataclass(frozen=True, kw_only=True)
class PublishedResult:
    """Returns that a publication reports for a method on a task."""

    task: str
    """Task as <suite>/<name>."""
    method: str
    frames: int
    """Simulator frames of training, action repeat included."""
    returns: tuple[float, ...]
    """Return of each seed."""
    source: str
    """Reference to the publication."""
    views: int | None = None
    """Number of cameras, if reported."""


def read_published_results(path: Path) -> list[PublishedResult]:
    """Read a JSON file as {"results": [{"method", "suite", "task", "frames", "returns", "source"}]}.

    Raises:
        ValueError: The file has another structure, or too many rows or seeds.

    """
    try:
        rows = read_json(Path(os.path.realpath(path)))["results"]
        if len(rows) > MAX_ROWS:
            raise ValueError(f"too many rows: expected at most {MAX_ROWS:,}, got {len(rows):,}")
        return [_parse_row(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is invalid: expected published results as "
            '{"results": [{"method": "drqv2", "suite": "dmc", "task": "cheetah_run", "frames": 100000, '
            f'"returns": [416.6, 367.9], "source": "reference"}}]}}, got {type(error).__name__}: {error}'
        ) from None


def _parse_row(row: dict[str, Any]) -> PublishedResult:
    returns, views = row["returns"], row.get("views")
    if not returns:
        raise ValueError(f"a row has no returns: {row}")
    if not isinstance(returns, list) or len(returns) > MAX_SEEDS or not all(map(is_number, returns)):
        raise ValueError(f"returns must be at most {MAX_SEEDS} numbers, got {returns}")
    if not is_count(row["frames"]) or not (views is None or is_count(views)):
        raise ValueError(f"frames and views must be non-negative integers, got {row['frames']!r} and {views!r}")
    return PublishedResult(
        task=sanitize_text(f"{row['suite']}/{row['task']}"),
        method=sanitize_text(row["method"]),
        frames=row["frames"],
        returns=tuple(map(float, returns)),
        source=sanitize_text(row["source"]),
        views=views,
    )
