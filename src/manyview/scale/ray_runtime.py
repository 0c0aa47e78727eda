"""Access to Ray: import, settings, results with deadlines, and errors. Calls through handles are untyped."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from manyview.training.signals import get_current_request
from manyview.training.trainer import EngineError
from manyview.utils.optional_imports import import_optional

os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # otherwise Tune prints its own tables
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # manyview handles Ctrl-C
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # relative paths work as in `manyview train`
logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # manyview reports failures in one line

ray: Any = import_optional("ray", extra="scale")

RESULT_TIMEOUT_S = 300.0
"""Deadline of a call to a shard, generous because a remote disk may stall for a while."""
STOPPING_TIMEOUT_S = 4.0
"""Deadline once a stop is requested: schedulers often kill a process 10 s after SIGTERM."""
POLL_INTERVAL_S = 0.25
"""Interval of the stop checks while waiting for results."""

Handle = Any
"""Handle of an object in another process: `handle.method.remote(...)` returns a reference for `ray.get`."""


def import_ray_module(name: str) -> Any:
    """Import a module of Ray, such as `ray.tune` or `ray.train`, which take seconds."""
    return import_optional(f"ray.{name}", extra="scale")


@contextmanager
def translate_ray_errors() -> Iterator[None]:
    """Convert the loss of a Ray process to an `EngineError` with a one-line message.

    Exceptions raised by the code in a Ray process pass unchanged; an OSError keeps its message without Ray's traceback.
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
    """Return the results of calls to `shards` (default: one call each, in order).

    The deadline is `RESULT_TIMEOUT_S` by default, and `STOPPING_TIMEOUT_S` once a stop is requested.

    Raises:
        EngineError: A shard missed the deadline; the message has its number.

    """
    limit_s, waited_s, stopping_s = RESULT_TIMEOUT_S if deadline_s is None else deadline_s, 0.0, 0.0
    while True:
        try:
            values: list[Any] = ray.get(references, timeout=POLL_INTERVAL_S)
            return values
        except ray.exceptions.GetTimeoutError:
            # Counts polls instead of clock time: after a suspension of the run, shards must not appear late.
            waited_s += POLL_INTERVAL_S
            stopping_s += POLL_INTERVAL_S if get_current_request() else 0.0
        if waited_s < limit_s and stopping_s < STOPPING_TIMEOUT_S:
            continue
        if pending := ray.wait(references, num_returns=len(references), timeout=0)[1]:
            number = references.index(pending[0])
            within = f"{limit_s:g} s"
            if stopping_s:
                within = f"{STOPPING_TIMEOUT_S:g} s of the stop request, so no checkpoint of this moment is written"
            raise EngineError(
                f"replay shard {number if shards is None else shards[number]} does not answer: expected a reply within "
                f"{within}. Check its process, machine and disk, and repeat the command to resume from the newest "
                "checkpoint"
            )


def extract_cause(error: BaseException) -> str:
    """Return the line of Ray's error message that names the cause: the last one of a traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    has_traceback = isinstance(error, ray.exceptions.RayTaskError) or any(
        line.startswith("Traceback") for line in lines
    )
    return lines[-1] if has_traceback or "raised in its creation task" in lines[0] else lines[0]
