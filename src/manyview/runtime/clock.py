"""Time and background work of the runtime; tests replace both by virtual ones."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

Step = Callable[[], float | None]
"""One unit of background work. Returns the pause until the next one in seconds, or None to end."""


class Worker(Protocol):
    """Background work that repeats a step."""

    def stop(self) -> None:
        """Request the end; returns immediately."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the end and return whether it came within `timeout_s`."""


class Clock(Protocol):
    """Source of time; all times of the runtime are seconds of one clock."""

    def now(self) -> float:
        """Return the time in seconds."""

    def sleep_until(self, time_s: float) -> None:
        """Return at `time_s`, or at once if it has passed."""

    def start_worker(self, name: str, step: Step, finish: Callable[[], None] | None = None) -> Worker:
        """Repeat `step` in the background; call `finish` in the same thread at the end."""


class SystemClock:
    """The time of `time.monotonic`, and threads."""

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, time_s: float) -> None:
        remaining_s = time_s - time.monotonic()
        if remaining_s > 0:
            time.sleep(remaining_s)

    def start_worker(self, name: str, step: Step, finish: Callable[[], None] | None = None) -> Worker:
        return ThreadWorker(name, step, finish)


class ThreadWorker:
    """Daemon thread that repeats a step; a step that hangs is abandoned at the end of the process."""

    def __init__(self, name: str, step: Step, finish: Callable[[], None] | None = None) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=_repeat, args=(step, finish, self._stopped), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()


def _repeat(step: Step, finish: Callable[[], None] | None, stopped: threading.Event) -> None:
    try:
        while not stopped.is_set():
            pause_s = step()
            if pause_s is None:
                return
            stopped.wait(pause_s)
    finally:
        if finish is not None:
            finish()


SYSTEM_CLOCK = SystemClock()
