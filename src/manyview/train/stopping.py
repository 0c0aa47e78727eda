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

from manyview.envs.layers.boundary import Terminated, env_error, is_foreign

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PATIENCE_S = 6.0
"""From a signal to where an environment's call that has not returned is given up."""
LAST_RESORT_S = 8.5
"""From a signal to an end by a timer in C, for a call that lets no other Python code run."""
POLL_S = 0.2


class StopRequest:
    """Who looks at `asked` between two steps stops there."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.asked is not None

    def ask(self, number: int, _: FrameType | None = None) -> None:
        if self.asked is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # somebody who presses it twice means now
        self.asked = signal.Signals(number)


_current: StopRequest | None = None


def current_request() -> StopRequest | None:
    """Return the stop request of the run under way, for code that waits for other processes."""
    return _current


def set_current_request(request: StopRequest | None) -> None:
    """Make `request` the one that all threads of this process see, until the run is closed."""
    global _current
    _current = request


class Stopped(Exception):  # noqa: N818
    """What was being done is not done, and will be done again."""


class EnvCalls:
    """Mark calls of an environment, as `with calls("step"): ...`, and name the call in what it raises."""

    def __init__(self, task: str) -> None:
        self._task, self._name = task, ""
        self.pending: tuple[str, float] | None = None
        """The call that has not returned, and when it began; other threads read it."""
        self.on_return: Callable[[], None] | None = None

    def __call__(self, name: str) -> "EnvCalls":
        self._name = name
        return self

    def __enter__(self) -> None:
        self.pending = (self._name, monotonic())

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        (name, self._name), self.pending = (self._name, ""), None
        if self.on_return is not None:
            self.on_return()
        if error is not None and is_foreign(error):
            raise env_error(self._task, name, error) from error


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
        calls: EnvCalls,
        leave: Callable[[str, float, int | None], None],
        *,
        step_deadline_s: float | None = None,
    ) -> None:
        self._calls, self._leave, self._step_deadline_s = calls, leave, step_deadline_s
        self._leaving, self._armed = Lock(), False
        self._ears, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        self._fd_before: int | None = None
        with suppress(ValueError):  # only the main thread hears of signals
            self._fd_before = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        self._thread = Thread(target=self._watch, daemon=True, name="watchdog")
        self._thread.start()

    def last_resort(self) -> None:
        """In a signal handler: end within seconds even if no other thread runs any more."""
        self._calls.on_return = self._call_off
        if self._calls.pending is not None:
            self._end_within(LAST_RESORT_S)

    def settle(self) -> None:
        """Before a run is saved: wait here for ever if `leave` is already ending the process."""
        with self._leaving:
            pass

    def close(self) -> None:
        if self._fd_before is not None:
            signal.set_wakeup_fd(self._fd_before)
        self._mouth.close()  # the thread reads that, and ends
        self._thread.join(5)
        self._ears.close()
        self._calls.on_return = None
        self._call_off()

    def _watch(self) -> None:
        heard_s, number, deadline_s = inf, None, self._step_deadline_s or inf
        while True:
            idle = heard_s == inf and deadline_s == inf
            if select([self._ears], [], [], None if idle else POLL_S)[0]:
                if not (numbers := self._ears.recv(64)):
                    return
                if asked := [each for each in numbers if each in STOP_SIGNALS]:
                    heard_s, number = min(heard_s, monotonic()), asked[-1]
            if deadline_s < inf:
                self._end_within(deadline_s + LAST_RESORT_S)  # put off again and again, for as long as this thread runs
            if (pending := self._calls.pending) is None:
                continue
            (name, since_s), now_s = pending, monotonic()
            late = name == "step" and now_s - since_s > deadline_s
            if late or now_s - max(heard_s, since_s) >= PATIENCE_S:
                with self._leaving:
                    if self._calls.pending is pending:
                        self._end_within(LAST_RESORT_S - PATIENCE_S)  # the disk may hang too
                        self._leave(name, now_s - since_s, number)

    def _end_within(self, seconds: float) -> None:
        """Unless called off: write all stacks to stderr and end the process, by a timer that needs no GIL."""
        with suppress(Exception):  # no stderr
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
            self._armed = True

    def _call_off(self) -> None:
        if self._armed:
            faulthandler.cancel_dump_traceback_later()
            self._armed = False


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """While a run is not under way there is nothing to save, so SIGTERM is an end like any other, and at once."""

    def end(*_: Any) -> None:
        raise Terminated(0)

    def leave(name: str, _: float, __: int | None) -> None:
        os.write(2, f"{name} did not end within {PATIENCE_S:.0f} s of a signal; nothing was under way\n".encode())
        os._exit(1)

    calls = EnvCalls("")
    calls.pending = ("the start of the run", 0.0)
    with handled({number: end for number in STOP_SIGNALS if number != signal.SIGINT}):
        watchdog = Watchdog(calls, leave)
        try:
            yield
        finally:
            watchdog.close()


@contextmanager
def stop_request(heard: Callable[[], None] = lambda: None) -> Iterator[StopRequest]:
    """A request that signals make, as long as this lasts. `heard` is called by each of them."""
    request = StopRequest()

    def ask(number: int, _: FrameType | None) -> None:
        heard()
        request.ask(number)

    with handled(dict.fromkeys(STOP_SIGNALS, ask)):
        yield request


@contextmanager
def handled(handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
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
