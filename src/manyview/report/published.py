"""Published figures, to stand beside our own curves."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Published:
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


def read_published(path: Path) -> list[Published]:
    """The rows of a JSON file: {"results": [{"method", "suite", "task", "frames", "returns", "source"}]}."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["results"]
        return [_row(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} must hold published figures as "
            '{"results": [{"method": "drqv2", "suite": "dmc", "task": "cheetah_run", "frames": 100000, '
            f'"returns": [416.6, 367.9], "source": "where from"}}]}}; {type(error).__name__}: {error}'
        ) from None


def _row(row: dict[str, Any]) -> Published:
    if not row["returns"]:
        raise ValueError(f"no returns in {row}")
    return Published(
        task=f"{row['suite']}/{row['task']}",
        method=str(row["method"]),
        frames=int(row["frames"]),
        returns=tuple(map(float, row["returns"])),
        source=str(row["source"]),
        views=row.get("views"),
    )
