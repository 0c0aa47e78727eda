"""Published figures, to stand beside our own curves."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyview.utils.json_io import is_count, is_number, read_json
from manyview.utils.text import sanitize_text

MAX_ROWS, MAX_SEEDS = 1_000, 100
"""Each takes milliseconds to draw."""


@dataclass(frozen=True, kw_only=True)
class PublishedResult:
    """What a method was reported to reach on a task."""

    task: str
    method: str
    frames: int
    """Of the simulator, action repeat counted."""
    returns: tuple[float, ...]
    """One for each seed."""
    source: str
    views: int | None = None
    """How many cameras it had, if that is told."""


def read_published_results(path: Path) -> list[PublishedResult]:
    """The rows of a JSON file: {"results": [{"method", "suite", "task", "frames", "returns", "source"}]}."""
    try:
        rows = read_json(Path(os.path.realpath(path)))["results"]
        if len(rows) > MAX_ROWS:
            raise ValueError(f"{len(rows):,} rows, at most {MAX_ROWS:,} are drawn")
        return [_parse_row(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} must hold published figures as "
            '{"results": [{"method": "drqv2", "suite": "dmc", "task": "cheetah_run", "frames": 100000, '
            f'"returns": [416.6, 367.9], "source": "where from"}}]}}; {type(error).__name__}: {error}'
        ) from None


def _parse_row(row: dict[str, Any]) -> PublishedResult:
    returns, views = row["returns"], row.get("views")
    if not returns:
        raise ValueError(f"no returns in {row}")
    if not isinstance(returns, list) or len(returns) > MAX_SEEDS or not all(map(is_number, returns)):
        raise ValueError(f"returns must be at most {MAX_SEEDS} numbers, got {returns}")
    if not is_count(row["frames"]) or not (views is None or is_count(views)):
        raise ValueError(f"frames and views must be whole numbers, got {row['frames']!r} and {views!r}")
    return PublishedResult(
        task=sanitize_text(f"{row['suite']}/{row['task']}"),
        method=sanitize_text(row["method"]),
        frames=row["frames"],
        returns=tuple(map(float, returns)),
        source=sanitize_text(row["source"]),
        views=views,
    )
