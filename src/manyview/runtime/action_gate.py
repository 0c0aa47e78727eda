"""The only way to the robot: sends one action at a time, and the safe action when the loop hangs."""

import threading
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from .clock import Clock, Worker

SAFE_ATTEMPTS = 3
"""Attempts to send the safe action."""
BUSY_TIMEOUT_S = 1.0
"""Maximum time that the safe action waits for a `send_action` that has not returned."""


class GateClosedError(RuntimeError):
    """The watchdog has sent the safe action; no further action is sent."""


class ActionGate:
    """Sends actions to the robot.

    From `start` until the safe action is sent, or `close`, a watchdog runs in the background. If no action is sent for
    `timeout_s`, it sends the safe action itself and closes the gate.
    """

    def __init__(
        self, send: Callable[[NDArray[Any]], None], safe_action: NDArray[Any], *, timeout_s: float, clock: Clock
    ) -> None:
        self._send, self._safe_action, self._timeout_s, self._clock = send, safe_action, timeout_s, clock
        self._lock = threading.Lock()
        self._last_sent_s = 0.0
        self._worker: Worker | None = None
        self.is_tripped = False
        """True after the watchdog has closed the gate."""
        self.is_stopped = False
        """True if the last action that was sent is the safe action."""

    def start(self) -> None:
        """Start the watchdog."""
        self._last_sent_s = self._clock.now()
        self._worker = self._clock.start_worker("watchdog", self._watch)

    def send(self, action: NDArray[Any]) -> None:
        """Send an action; `GateClosedError` after the watchdog has closed the gate."""
        with self._lock:
            if self.is_tripped:
                raise GateClosedError(f"no action was sent for {self._timeout_s} s: the watchdog stopped the robot")
            self.is_stopped = False
            self._send(action.copy())
            self._last_sent_s = self._clock.now()

    def send_safe(self) -> None:
        """Send the safe action, with several attempts; raises the error of the last one."""
        if not self._lock.acquire(timeout=BUSY_TIMEOUT_S):
            raise RuntimeError(f"safe action not sent: send_action has not returned within {BUSY_TIMEOUT_S} s")
        try:
            for attempt in range(1, SAFE_ATTEMPTS + 1):
                try:
                    self._send(self._safe_action.copy())
                except BaseException:  # also a second Ctrl-C must not prevent the stop
                    if attempt == SAFE_ATTEMPTS:
                        raise
                else:
                    self.is_stopped = True
                    return
        finally:
            self._lock.release()

    def close(self, timeout_s: float) -> bool:
        """Stop the watchdog and return whether it ended within `timeout_s`."""
        if self._worker is None:
            return True
        self._worker.stop()
        return self._worker.join(timeout_s)

    def _watch(self) -> float | None:
        """Check once; a `send_action` that is running is checked again later."""
        now = self._clock.now()
        # A clock that jumped back must not make the watchdog wait for it to catch up.
        self._last_sent_s = min(self._last_sent_s, now)
        if now - self._last_sent_s <= self._timeout_s or not self._lock.acquire(blocking=False):
            return self._timeout_s / 4
        try:
            if self.is_stopped:
                return None  # the run has ended: whoever moves the robot now must not be interrupted
            self.is_tripped = True
        finally:
            self._lock.release()
        try:
            self.send_safe()
        except Exception:
            return self._timeout_s / 4  # tried again
        return None
