"""Displays of a policy on a robot: a live table in a terminal, plain lines elsewhere.

The control loop only hands over its newest tick: a terminal that blocks delays the display, not the robot.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from manyview.runtime import PolicyRunner, RunnerSummary, Tick
from manyview.runtime.clock import ThreadWorker
from manyview.utils.text import print_line, sanitize_text

REFRESH_INTERVAL_S = 0.25
LINE_INTERVAL_S = 5.0
"""Time between two plain lines without a change of the masks."""
MAX_CHANGES = 100
JOIN_TIMEOUT_S = 1.0


@contextmanager
def show_run(runner: PolicyRunner, file: TextIO) -> Iterator[Callable[[Tick], None]]:
    """Show a run within the context; gives the `on_tick` of `PolicyRunner.run`. Plain lines go to `file`."""
    console, monitor = Console(stderr=True), RobotMonitor(runner.summary)
    display = LiveTable(monitor, console) if console.is_terminal else PlainLines(monitor, file)
    worker = ThreadWorker("robot-display", display.refresh)
    try:
        yield monitor.update
    finally:
        worker.stop()
        worker.join(JOIN_TIMEOUT_S)
        display.close()


class RobotMonitor:
    """Newest tick, and the changes of the masks since the last display."""

    def __init__(self, summary: RunnerSummary) -> None:
        self.summary = summary
        self.tick: Tick | None = None
        self.changes = deque[str](maxlen=MAX_CHANGES)
        self._masked: dict[str, str] = {}
        self._outcome = "act"

    def update(self, tick: Tick) -> None:
        """Store a tick; called by the control loop."""
        self.tick = tick
        seconds = f"{self.summary.seconds:7.2f} s"
        if tick.masked != self._masked:
            self.changes.append(f"{seconds}  {describe_change(self._masked, dict(tick.masked), tick)}")
            self._masked = dict(tick.masked)
        if tick.outcome != self._outcome:
            self.changes.append(f"{seconds}  {tick.outcome}  {tick.reason}".rstrip())
            self._outcome = tick.outcome

    def format_counts(self) -> str:
        """Format rate, misses, held ticks and dropped records."""
        counts = self.summary
        parts = [f"{counts.rate_hz:.1f} Hz", f"{counts.deadline_misses} of {counts.ticks:,} deadlines missed"]
        parts += [f"{counts.held_ticks} held"] if counts.held_ticks else []
        parts += [f"{counts.dropped_records} records dropped"] if counts.dropped_records else []
        return ", ".join(parts)


def describe_change(before: dict[str, str], now: dict[str, str], tick: Tick) -> str:
    """Return the views that are masked for another reason than before, and those that are back."""
    masked = [f"{name} masked: {now[name]}" for name in now if before.get(name) != now[name]]
    errors = [f"({tick.errors[name]})" for name in now if name in tick.errors and name not in before]
    return ", ".join([*masked, *(f"{name} is back" for name in before if name not in now)]) + " ".join(["", *errors])


def format_frame_age(tick: Tick, name: str) -> str:
    """Format the age of the newest frame of a view."""
    age_s = tick.ages_s[name]
    return "no image" if age_s is None else f"{1000 * age_s:.0f} ms"


class PlainLines:
    """Prints the changes, and a line every 5 s."""

    def __init__(self, monitor: RobotMonitor, file: TextIO) -> None:
        self._monitor, self._file, self._next_s = monitor, file, 0.0

    def refresh(self) -> float:
        """Print what is new and return the pause until the next call."""
        monitor = self._monitor
        while monitor.changes:
            print_line(monitor.changes.popleft(), file=self._file)
        tick, seconds = monitor.tick, monitor.summary.seconds
        if tick is not None and seconds >= self._next_s:
            self._next_s = seconds + LINE_INTERVAL_S
            ages = ", ".join(f"{name} {tick.masked.get(name, format_frame_age(tick, name))}" for name in tick.ages_s)
            print_line(f"{seconds:7.2f} s  {monitor.format_counts()}  {ages}", file=self._file)
        return REFRESH_INTERVAL_S

    def close(self) -> None:
        self.refresh()


class LiveTable:
    """Table of the views that is redrawn four times a second."""

    def __init__(self, monitor: RobotMonitor, console: Console) -> None:
        self._monitor = monitor
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def refresh(self) -> float:
        """Redraw and return the pause until the next call."""
        tick = self._monitor.tick
        if tick is not None:
            self._live.update(self._render(tick), refresh=True)
        return REFRESH_INTERVAL_S

    def close(self) -> None:
        self.refresh()
        self._live.stop()

    def _render(self, tick: Tick) -> Group:
        monitor, table = self._monitor, Table("view", "age", "greatest", "masked", box=None, padding=(0, 2))
        for name in tick.ages_s:
            greatest = 1000 * monitor.summary.max_age_s.get(name, 0.0)
            reason = tick.masked.get(name, "")
            masked = Text(f"{reason} {sanitize_text(tick.errors.get(name, ''))}".rstrip(), style="red")
            table.add_row(sanitize_text(name), format_frame_age(tick, name), f"{greatest:.0f} ms", masked)
        title = Text(f"{monitor.summary.seconds:.1f} s  {monitor.format_counts()}", style="bold")
        skew = Text(f"skew {1000 * tick.skew_s:.0f} ms, greatest {1000 * monitor.summary.max_skew_s:.0f} ms", "dim")
        changes = [Text(sanitize_text(change), style="yellow") for change in list(monitor.changes)[-3:]]
        return Group(title, table, skew, *changes)
