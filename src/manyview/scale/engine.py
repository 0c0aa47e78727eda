"""Ray as this package uses it. What comes out of its processes, no type can tell."""

import logging
import os
from typing import Any

from manyview.envs.optional import optional

os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # or Tune prints tables of its own
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C is ours to answer
logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what fails, people hear from us, in a line

ray: Any = optional("ray", extra="scale")

Handle = Any
"""Of an object in another process: `handle.method.remote(...)` gives a reference, `ray.get` what it refers to."""


def engine_part(name: str) -> Any:
    """`ray.tune` or `ray.train`, which take seconds to import."""
    return optional(f"ray.{name}", extra="scale")


def cause_of(error: BaseException) -> str:
    """Of what Ray says in paragraphs: the last line of a traceback names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    told = isinstance(error, ray.exceptions.RayTaskError) or any(line.startswith("Traceback") for line in lines)
    return lines[-1] if told else lines[0]
