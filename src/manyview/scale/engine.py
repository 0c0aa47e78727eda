"""Ray as this package uses it. What comes out of its processes, no type can tell."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from manyview.envs.optional import optional
from manyview.train.trainer import EngineError

os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # or Tune prints tables of its own
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C is ours to answer
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # a user's files are found as `manyview train` finds them
logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what fails, people hear from us, in a line

ray: Any = optional("ray", extra="scale")

Handle = Any
"""Of an object in another process: `handle.method.remote(...)` gives a reference, `ray.get` what it refers to."""


def engine_part(name: str) -> Any:
    """`ray.tune` or `ray.train`, which take seconds to import."""
    return optional(f"ray.{name}", extra="scale")


@contextmanager
def in_a_line() -> Iterator[None]:
    """A process of Ray's that is gone, as an error that a command can show. What was raised in one passes."""
    try:
        yield
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        raise EngineError(cause_of(error)) from error


def cause_of(error: BaseException) -> str:
    """Of what Ray says in paragraphs: the last line of a traceback names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    told = isinstance(error, ray.exceptions.RayTaskError) or any(line.startswith("Traceback") for line in lines)
    return lines[-1] if told or "raised in its creation task" in lines[0] else lines[0]
