"""SIGTERM and Ctrl-C as a request, which a run comes to at a place from which it can go on later."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


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


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """While a run is not under way there is nothing to save, so SIGTERM is an end like any other, and at once."""
    try:
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    except ValueError:  # only the main thread hears of signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """A request that signals make, as long as this lasts."""
    request, before = StopRequest(), {}
    with suppress(ValueError):  # only the main thread hears of signals
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, request.ask)
    try:
        yield request
    finally:
        handler: Any
        for number, handler in before.items():
            signal.signal(number, handler)
