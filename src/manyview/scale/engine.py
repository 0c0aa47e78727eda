"""Ray as this package uses it. What comes out of its processes, no type can tell."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from manyview.envs.optional import optional
from manyview.train.trainer import EngineError

os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # or Tune prints tables of its own
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C is ours to answer
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # a user's files are found as `manyview train` finds them
logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what fails, people hear from us, in a line

ray: Any = optional("ray", extra="scale")

ANSWER_S = 300.0
"""A disk far away may stall for a while."""

A_SHARD = "a shard of the replay"
Handle = Any
"""Of an object in another process: `handle.method.remote(...)` gives a reference, `ray.get` what it refers to."""


def engine_part(name: str) -> Any:
    """`ray.tune` or `ray.train`, which take seconds to import."""
    return optional(f"ray.{name}", extra="scale")


@contextmanager
def in_a_line() -> Iterator[None]:
    """A process of Ray's that is gone, as an error that a command can show.

    What was raised in one passes; an OSError in its own words, for which Ray has put a traceback.
    """
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, OSError):
            raise OSError(str(error.cause)) from None
        raise
    except ray.exceptions.RayError as error:
        raise EngineError(cause_of(error)) from error


def answers_of(references: Sequence[Any], *, who: str) -> list[Any]:
    """What they refer to. Whoever does not answer may hang for ever, and with it whoever waits: here that ends."""
    try:
        found: list[Any] = ray.get(references, timeout=ANSWER_S)
    except ray.exceptions.GetTimeoutError:
        raise EngineError(f"{who} has not answered for {ANSWER_S:g} s: does its machine live, and its disk?") from None
    return found


def cause_of(error: BaseException) -> str:
    """Of what Ray says in paragraphs: the last line of a traceback names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    told = isinstance(error, ray.exceptions.RayTaskError) or any(line.startswith("Traceback") for line in lines)
    return lines[-1] if told or "raised in its creation task" in lines[0] else lines[0]
