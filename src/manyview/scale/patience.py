"""Folders that somebody who is gone may still hold for a moment."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

LOCK_TIMEOUT_S = 30.0
"""What a killed driver had started may live a little longer; nobody else trains in its folders."""

T = TypeVar("T")


def retry_while_locked(start: Callable[[], T]) -> T:
    """What `start` gives, once no other process holds the folder of its run."""
    deadline_s = monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return start()
        except FileExistsError:
            if monotonic() > deadline_s:
                raise
            sleep(1.0)
