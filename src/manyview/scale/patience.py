"""Folders that somebody who is gone may still hold for a moment."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

PATIENCE_S = 30.0
"""What a killed driver had started may live a little longer; nobody else trains in its folders."""

Kind = TypeVar("Kind")


def when_free(begin: Callable[[], Kind]) -> Kind:
    """What `begin` gives, once no other process holds the folder of its run."""
    patience_ends_s = monotonic() + PATIENCE_S
    while True:
        try:
            return begin()
        except FileExistsError:
            if monotonic() > patience_ends_s:
                raise
            sleep(1.0)
