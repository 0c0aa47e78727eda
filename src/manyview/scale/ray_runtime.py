"""Ray as this package uses it. What comes out of its processes, no type can tell."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from manyview.train.signals import get_current_request
from manyview.train.trainer import EngineError
from manyview.utils.optional_imports import import_optional

os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # or Tune prints tables of its own
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C is ours to answer
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # a user's files are found as `manyview train` finds them
logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what fails, people hear from us, in a line

ray: Any = import_optional("ray", extra="scale")

RESULT_TIMEOUT_S = 300.0
"""Deadline of a call to a shard: a remote disk may stall for a while."""
STOPPING_TIMEOUT_S = 4.0
"""The same once a stop is requested: schedulers often kill a process 10 s after SIGTERM."""
POLL_INTERVAL_S = 0.25
"""Interval of the stop checks while a call is waited for."""

Handle = Any
"""Of an object in another process: `handle.method.remote(...)` gives a reference, `ray.get` what it refers to."""


def import_ray_module(name: str) -> Any:
    """`ray.tune` or `ray.train`, which take seconds to import."""
    return import_optional(f"ray.{name}", extra="scale")


@contextmanager
def translate_ray_errors() -> Iterator[None]:
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
        raise EngineError(extract_cause(error)) from error


def get_results(
    references: Sequence[Any], *, shards: Sequence[int] | None = None, deadline_s: float | None = None
) -> list[Any]:
    """Return the values of calls to `shards` (default: one call each, in order).

    Raises `EngineError` with the number of a shard that misses the deadline, by default `ANSWER_S`.
    """
    limit_s, waited_s, stopping_s = RESULT_TIMEOUT_S if deadline_s is None else deadline_s, 0.0, 0.0
    while True:
        try:
            values: list[Any] = ray.get(references, timeout=POLL_INTERVAL_S)
            return values
        except ray.exceptions.GetTimeoutError:
            # Polls are counted instead of clock time: a suspended run must not find its shards late.
            waited_s += POLL_INTERVAL_S
            stopping_s += POLL_INTERVAL_S if get_current_request() else 0.0
        if waited_s < limit_s and stopping_s < STOPPING_TIMEOUT_S:
            continue
        if pending := ray.wait(references, num_returns=len(references), timeout=0)[1]:
            number = references.index(pending[0])
            within = f"{limit_s:g} s"
            if stopping_s:
                within = f"{STOPPING_TIMEOUT_S:g} s of the request to stop, so no checkpoint of this moment is written"
            raise EngineError(
                f"shard {number if shards is None else shards[number]} of the replay does not answer: expected a reply "
                f"within {within}. Check its process, machine and disk; the same command goes on from the newest "
                "checkpoint"
            )


def extract_cause(error: BaseException) -> str:
    """Of what Ray says in paragraphs: the last line of a traceback names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    has_traceback = isinstance(error, ray.exceptions.RayTaskError) or any(
        line.startswith("Traceback") for line in lines
    )
    return lines[-1] if has_traceback or "raised in its creation task" in lines[0] else lines[0]
