"""Stop requests: SIGTERM, SIGHUP and Ctrl-C stop a run at a point from which it can resume.

A call of an environment that does not return must not block a stop: a `Watchdog` receives the signals too.
"""

import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from select import select
from threading import Lock, Thread
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

from manyview.envs.contract import Terminated, is_foreign, make_env_error

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOP_TIMEOUT_S = 6.0
"""Time from a signal to the end of the process if a call of an environment has not returned."""
FORCED_EXIT_S = 8.5
"""Time from a signal to the end of the process by a timer in C, for a call that blocks all Python code."""
POLL_INTERVAL_S = 0.2


class StopRequest:
    """Flag that training loops check between two steps; true after a request."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """Signal that made the request; None before, and if a callback made it."""
        self._made_by_callback = False

    def __bool__(self) -> bool:
        return self._made_by_callback or self.signal is not None

    def request(self, number: int, _: FrameType | None = None) -> None:
        """Request a stop by a signal; a second Ctrl-C raises `KeyboardInterrupt`."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # pressed twice: leave at once
        self.signal = signal.Signals(number)

    def request_without_signal(self) -> None:
        """Request a stop of the run alone, as a callback does."""
        self._made_by_callback = True


_current: StopRequest | None = None


def get_current_request() -> StopRequest | None:
    """Return the stop request of the current run, for callbacks and for code that waits for other processes."""
    return _current


def set_current_request(request: StopRequest | None) -> None:
    """Set the stop request that all threads of this process see; None after the run."""
    global _current
    _current = request


class StopRequested(Exception):  # noqa: N818
    """A stop request interrupted a job; the resumed run repeats it."""


class EnvCallTracker:
    """Mark calls of an environment, as `with calls("step"): ...`, and name the call in its errors."""

    def __init__(self, task: str) -> None:
        self._task, self._name = task, ""
        self.pending: tuple[str, float] | None = None
        """Name and start time of the call that has not returned; other threads read it."""
        self.on_return: Callable[[], None] | None = None
        """Callback after every call."""

    def __call__(self, name: str) -> "EnvCallTracker":
        self._name = name
        return self

    def __enter__(self) -> None:
        self.pending = (self._name, monotonic())

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        (name, self._name), self.pending = (self._name, ""), None
        if self.on_return is not None:
            self.on_return()
        if error is not None and is_foreign(error):
            raise make_env_error(self._task, name, error) from error


class Watchdog:
    """Thread that ends the process through `leave` if a call of an environment blocks a stop.

    It receives signals through a socket that the interpreter writes to at once, even while the main thread runs C code.
    Code that holds the GIL blocks this thread too. If it lets signal handlers run, a timer in C ends the process
    (`arm_forced_exit`); otherwise only SIGKILL or `step_deadline_s` does.

    Args:
        calls: Tracker of the environment's calls.
        leave: Ends the process; called with the call's name, its seconds so far and the signal (None at a deadline).
        step_deadline_s: Longest duration of a step; a longer one ends the process without a signal.

    """

    def __init__(
        self,
        calls: EnvCallTracker,
        leave: Callable[[str, float, int | None], None],
        *,
        step_deadline_s: float | None = None,
    ) -> None:
        self._calls, self._leave, self._step_deadline_s = calls, leave, step_deadline_s
        self._exit_lock, self._armed = Lock(), False
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._previous_fd: int | None = None
        with suppress(ValueError):  # only the main thread can handle signals
            self._previous_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._thread = Thread(target=self._watch, daemon=True, name="watchdog")
        self._thread.start()

    def arm_forced_exit(self) -> None:
        """Start the timer that ends a blocked process even if no other thread runs; for signal handlers."""
        self._calls.on_return = self._cancel_exit
        if self._calls.pending is not None:
            self._exit_within(FORCED_EXIT_S)

    def wait_if_exiting(self) -> None:
        """Block forever if `leave` is already ending the process; call it before saving a run."""
        with self._exit_lock:
            pass

    def close(self) -> None:
        """End the thread, cancel the timer and restore the wakeup file descriptor."""
        if self._previous_fd is not None:
            signal.set_wakeup_fd(self._previous_fd)
        self._sender.close()  # ends the thread
        self._thread.join(5)
        self._receiver.close()
        self._calls.on_return = None
        self._cancel_exit()

    def _watch(self) -> None:
        signal_s, number, deadline_s = inf, None, self._step_deadline_s or inf
        while True:
            idle = signal_s == inf and deadline_s == inf
            if select([self._receiver], [], [], None if idle else POLL_INTERVAL_S)[0]:
                if not (numbers := self._receiver.recv(64)):
                    return
                if stop_numbers := [received for received in numbers if received in STOP_SIGNALS]:
                    signal_s, number = min(signal_s, monotonic()), stop_numbers[-1]
            if deadline_s < inf:
                self._exit_within(deadline_s + FORCED_EXIT_S)  # postponed for as long as this thread runs
            if (pending := self._calls.pending) is None:
                continue
            (name, since_s), now_s = pending, monotonic()
            late = name == "step" and now_s - since_s > deadline_s
            if late or now_s - max(signal_s, since_s) >= STOP_TIMEOUT_S:
                with self._exit_lock:
                    if self._calls.pending is pending:
                        self._exit_within(FORCED_EXIT_S - STOP_TIMEOUT_S)  # `leave` may block on the disk
                        self._leave(name, now_s - since_s, number)

    def _exit_within(self, seconds: float) -> None:
        """Start a timer, which needs no GIL, that writes all stacks to stderr and ends the process."""
        with suppress(Exception):  # no stderr
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
            self._armed = True

    def _cancel_exit(self) -> None:
        if self._armed:
            faulthandler.cancel_dump_traceback_later()
            self._armed = False


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the process at once, since there is no run to save yet."""

    def end(*_: Any) -> None:
        raise Terminated(0)

    def leave(name: str, _: float, __: int | None) -> None:
        os.write(
            2,
            f"{name} did not end within {STOP_TIMEOUT_S:.0f} s of a signal; no run was active\n".encode(),
        )
        os._exit(1)

    calls = EnvCallTracker("")
    calls.pending = ("the start of the run", 0.0)
    with install_handlers({number: end for number in STOP_SIGNALS if number != signal.SIGINT}):
        watchdog = Watchdog(calls, leave)
        try:
            yield
        finally:
            watchdog.close()


@contextmanager
def handle_stop_signals(on_signal: Callable[[], None] = lambda: None) -> Iterator[StopRequest]:
    """Return a context whose stop request is made by signals; each signal calls `on_signal` first."""
    request = StopRequest()

    def request_stop(number: int, _: FrameType | None) -> None:
        on_signal()
        request.request(number)

    with install_handlers(dict.fromkeys(STOP_SIGNALS, request_stop)):
        yield request


@contextmanager
def install_handlers(handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    """Handle these signals, except SIGHUP if it is ignored, as `nohup` does; restore the handlers at the end."""
    previous: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # only the main thread can handle signals
        for number, handler in handlers.items():
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
