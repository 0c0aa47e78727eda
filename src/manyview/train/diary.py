"""What a session keeps of itself in a checkpoint."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from manyview.train.checkpoint import NAME_PATTERN
from manyview.utils.json_io import is_count

PERIODIC_JOBS = ("evaluation", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class RunnerState:
    """The defaults are those of a session that begins."""

    seconds: float = 0.0
    metrics_bytes: int = 0
    """Of the records so far; what is behind them will come again."""
    metrics_sha256: str | None = None
    """Of these bytes; None in checkpoints of before it was kept."""
    due: tuple[str, ...] = PERIODIC_JOBS
    """What is to be done before the next step."""
    good: str = ""
    """The last checkpoint that was due, and not one more because of a stop."""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Any) -> "RunnerState":
        """A diary from outside; what is wrong with it raises ValueError."""
        match plain:
            case {"seconds": float(seconds), "metrics_bytes": size, "due": [*due], "good": str(good)} if (
                0 <= seconds < math.inf
                and isinstance(sha256 := plain.get("metrics_sha256"), str | None)
                and is_count(size)
                and len(due) <= len(PERIODIC_JOBS)
                and all(name in PERIODIC_JOBS for name in due)
                and (not good or NAME_PATTERN.fullmatch(good))  # it becomes a path
            ):
                return cls(seconds=seconds, metrics_bytes=size, metrics_sha256=sha256, due=tuple(due), good=good)
        raise ValueError("what the session kept of itself makes no sense")
