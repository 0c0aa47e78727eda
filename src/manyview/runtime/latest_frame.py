"""Background reader that keeps the newest result of a slow camera."""

import threading
import time
import weakref
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from .clock import SYSTEM_CLOCK, Clock

READ_INTERVAL_S = 0.001
"""Minimum pause between two reads, so that a fast camera does not keep a core busy."""
RETRY_INTERVAL_S = 0.05
"""Pause after a failed read."""
CLOSE_TIMEOUT_S = 1.0
"""Maximum time that `close` waits for a running read."""

T = TypeVar("T")


class LatestFrame(Generic[T]):
    """Calls `read` repeatedly in the background and keeps its newest result.

    `wait_for_frame` waits for a read that is new enough. A failed read is a result too, and so is None; `newest` skips
    both. The reads of a camera start at least `interval_s` apart. `release` is called after the last read, in the
    thread of the reads.
    """

    def __init__(
        self,
        read: Callable[[], T | None],
        *,
        name: str = "camera",
        interval_s: float = 0.0,
        retry_interval_s: float = RETRY_INTERVAL_S,
        release: Callable[[], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._slot: _Slot[T] = _Slot()
        reader = _Reader(read, self._slot, interval_s, retry_interval_s, clock)
        self._worker = clock.start_worker(name, reader.read_once, release)
        weakref.finalize(self, self._worker.stop)  # in case it is never closed

    @property
    def newest(self) -> T | None:
        """Newest result of a read that did not fail; None before the first."""
        return self._slot.newest

    @property
    def error(self) -> BaseException | None:
        """Exception of the newest read; None if it did not fail."""
        return self._slot.fatal_error or self._slot.error

    def wait_for_frame(self, *, since_s: float, until_s: float) -> T | None:
        """Return the newest result of a read that started at or after `since_s`, waiting until `until_s` for it.

        Both are times of the clock. Raises `TimeoutError` if there is none by then, and the exception of a failed read.
        """
        slot = self._slot
        with slot.condition:
            timeout_s = max(0.0, until_s - time.monotonic())
            has_result = slot.condition.wait_for(
                lambda: slot.started_s >= since_s or slot.fatal_error, timeout=timeout_s
            )
            result, error = slot.result, slot.error
        if slot.fatal_error is not None:
            raise slot.fatal_error
        if not has_result:
            raise TimeoutError("no new image before the deadline")
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        """Request that reading stops; returns immediately."""
        self._worker.stop()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop, wait up to `timeout_s` for a running read and return whether it ended.

        A hanging read is abandoned.
        """
        self.stop()
        return self._worker.join(timeout_s)


class _Slot(Generic[T]):
    """State that the camera thread and the reader share."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.started_s = -inf
        """Start of the newest read that has ended."""
        self.result: T | None = None
        self.newest: T | None = None
        self.error: Exception | None = None
        self.fatal_error: BaseException | None = None
        """Interrupt or exit raised in the thread; not a camera failure."""

    def put(self, result: T | None, error: Exception | None = None, *, started_s: float) -> None:
        with self.condition:
            self.started_s, self.result, self.error = started_s, result, error
            self.newest = self.newest if result is None else result
            self.condition.notify_all()


class _Reader(Generic[T]):
    """One camera's reads; holds no reference to the `LatestFrame`, whose end ends the reads."""

    def __init__(
        self,
        read: Callable[[], T | None],
        slot: _Slot[T],
        interval_s: float,
        retry_interval_s: float,
        clock: Clock,
    ) -> None:
        self._read, self._slot, self._clock = read, slot, clock
        self._interval_s, self._retry_interval_s = interval_s, retry_interval_s

    def read_once(self) -> float | None:
        """Read once and return the pause until the next read; None after an exit or interrupt."""
        start_s = self._clock.now()
        try:
            result = self._read()
        except Exception as error:  # raised by wait_for_frame
            self._slot.put(None, error, started_s=start_s)
            return self._retry_interval_s
        except BaseException as error:
            self._slot.fatal_error = error
            self._slot.put(None, started_s=start_s)
            return None
        self._slot.put(result, started_s=start_s)
        if result is None:
            return self._retry_interval_s
        return max(READ_INTERVAL_S, self._interval_s - (self._clock.now() - start_s))
