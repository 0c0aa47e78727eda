"""Counts of a run on a robot."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from .trace import Tick


@dataclass
class RunnerSummary:
    """Result of `PolicyRunner.run`."""

    reason: str = "running"
    """Reason of the end: `finished`, `stale`, `no_view`, `hold_expired`, `watchdog`, `error` or `interrupted`."""
    detail: str = ""
    """The cameras, state vectors or error behind the reason."""
    safe_action_sent: bool = False
    """True if the safe action is the last that the robot received."""
    seconds: float = 0.0
    ticks: int = 0
    held_ticks: int = 0
    deadline_misses: int = 0
    limited_ticks: int = 0
    """Ticks whose action the limits changed."""
    masked_ticks: Counter[str] = field(default_factory=Counter)
    """Ticks in which a view was masked, by view."""
    max_age_s: dict[str, float] = field(default_factory=dict)
    """Greatest age of a frame that the policy saw, by view."""
    max_skew_s: float = 0.0
    camera_failures: dict[str, int] = field(default_factory=dict)
    """Failed reads by camera."""
    dropped_records: int = 0
    """Records that are missing in the trace."""
    lost_frames: int = 0
    """Frames that are missing in the trace."""
    trace_error: str | None = None

    @property
    def rate_hz(self) -> float:
        """Ticks per second."""
        return self.ticks / self.seconds if self.seconds > 0 else 0.0

    def add(self, tick: Tick, *, seconds: float) -> None:
        """Count a tick, `seconds` after the first."""
        self.seconds = seconds
        self.ticks += 1
        self.held_ticks += tick.outcome == "hold"
        self.deadline_misses += tick.deadline_missed
        if tick.outcome == "act" and tick.raw is not None and tick.sent is not None:
            self.limited_ticks += tick.raw.tobytes() != tick.sent.tobytes()
        self.masked_ticks.update(tick.masked.keys())
        for name in tick.frames:
            self.max_age_s[name] = max(self.max_age_s.get(name, 0.0), tick.ages_s[name] or 0.0)
        self.max_skew_s = max(self.max_skew_s, tick.skew_s)

    def to_plain(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {**asdict(self), "masked_ticks": dict(self.masked_ticks), "rate_hz": self.rate_hz}
