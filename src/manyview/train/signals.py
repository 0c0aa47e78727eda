"""SIGTERM, SIGHUP and Ctrl-C as a request, which a run comes to at a place from which it can go on later.

A call of an environment that does not return must not keep a run from leaving: a `Watchdog` hears the signals too.
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
"""From a signal to where an environment's call that has not returned is given up."""
FORCED_EXIT_S = 8.5
"""From a signal to an end by a timer in C, for a call that lets no other Python code run."""
POLL_INTERVAL_S = 0.2


class StopRequest:
    """Who looks at `asked` between two steps stops there."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def request(self, number: int, _: FrameType | None = None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # somebody who presses it twice means now
        self.signal = signal.Signals(number)


_current: StopRequest | None = None


def get_current_request() -> StopRequest | None:
    """Return the stop request of the run under way, for code that waits for other processes."""
    return _current


def set_current_request(request: StopRequest | None) -> None:
    """Make `request` the one that all threads of this process see, until the run is closed."""
    global _current
    _current = request


class StopRequested(Exception):  # noqa: N818
    """What was being done is not done, and will be done again."""


class EnvCallTracker:
    """Mark calls of an environment, as `with calls("step"): ...`, and name the call in what it raises."""

    def __init__(self, task: str) -> None:
        self._task, self._name = task, ""
        self.pending: tuple[str, float] | None = None
        """The call that has not returned, and when it began; other threads read it."""
        self.on_return: Callable[[], None] | None = None

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
    """A thread that ends the process by `leave` when a call of an environment keeps it from stopping.

    It hears signals by a socket that the interpreter writes to at once, so also while the main thread is in C code.
    Code that keeps the GIL stops this thread too: where it lets signal handlers run, a timer in C ends the process
    (`last_resort`), otherwise only SIGKILL or `step_deadline_s` do.

    Args:
        calls: of the environment.
        leave: is called with the name of the call, the seconds it has taken, and the signal (None at a deadline).
        step_deadline_s: a step that takes longer ends the process without a signal.

    """

    def __init__(
        self,
        calls: EnvCallTracker,
        leave: Callable[[str, float, int | None], None],
        *,
        step_deadline_s: float | None = None,
    ) -> None:
        self._calls, self._leave, self._step_deadline_s = calls, leave, step_deadline_s
        self._leaving, self._armed = Lock(), False
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._fd_before: int | None = None
        with suppress(ValueError):  # only the main thread hears of signals
            self._fd_before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._thread = Thread(target=self._watch, daemon=True, name="watchdog")
        self._thread.start()

    def arm_forced_exit(self) -> None:
        """In a signal handler: end within seconds even if no other thread runs any more."""
        self._calls.on_return = self._cancel_exit
        if self._calls.pending is not None:
            self._exit_within(FORCED_EXIT_S)

    def wait_if_exiting(self) -> None:
        """Before a run is saved: wait here for ever if `leave` is already ending the process."""
        with self._leaving:
            pass

    def close(self) -> None:
        if self._fd_before is not None:
            signal.set_wakeup_fd(self._fd_before)
        self._sender.close()  # the thread reads that, and ends
        self._thread.join(5)
        self._receiver.close()
        self._calls.on_return = None
        self._cancel_exit()

    def _watch(self) -> None:
        heard_s, number, deadline_s = inf, None, self._step_deadline_s or inf
        while True:
            idle = heard_s == inf and deadline_s == inf
            if select([self._receiver], [], [], None if idle else POLL_INTERVAL_S)[0]:
                if not (numbers := self._receiver.recv(64)):
                    return
                if asked := [each for each in numbers if each in STOP_SIGNALS]:
                    heard_s, number = min(heard_s, monotonic()), asked[-1]
            if deadline_s < inf:
                self._exit_within(
                    deadline_s + FORCED_EXIT_S
                )  # put off again and again, for as long as this thread runs
            if (pending := self._calls.pending) is None:
                continue
            (name, since_s), now_s = pending, monotonic()
            late = name == "step" and now_s - since_s > deadline_s
            if late or now_s - max(heard_s, since_s) >= STOP_TIMEOUT_S:
                with self._leaving:
                    if self._calls.pending is pending:
                        self._exit_within(FORCED_EXIT_S - STOP_TIMEOUT_S)  # the disk may hang too
                        self._leave(name, now_s - since_s, number)

    def _exit_within(self, seconds: float) -> None:
        """Unless called off: write all stacks to stderr and end the process, by a timer that needs no GIL."""
        with suppress(Exception):  # no stderr
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
            self._armed = True

    def _cancel_exit(self) -> None:
        if self._armed:
            faulthandler.cancel_dump_traceback_later()
            self._armed = False


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """While a run is not under way there is nothing to save, so SIGTERM is an end like any other, and at once."""

    def end(*_: Any) -> None:
        raise Terminated(0)

    def leave(name: str, _: float, __: int | None) -> None:
        os.write(2, f"{name} did not end within {STOP_TIMEOUT_S:.0f} s of a signal; nothing was under way\n".encode())
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
    """A request that signals make, as long as this lasts. `heard` is called by each of them."""
    request = StopRequest()

    def ask(number: int, _: FrameType | None) -> None:
        on_signal()
        request.request(number)

    with install_handlers(dict.fromkeys(STOP_SIGNALS, ask)):
        yield request


@contextmanager
def install_handlers(handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    """Handle these signals, but for SIGHUP where it is ignored: whoever says `nohup` means it."""
    before: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # only the main thread hears of signals
        for number, handler in handlers.items():
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
