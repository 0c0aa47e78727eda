"""Ray as this package uses it. What comes out of its processes, no type can tell."""

from typing import Any

from manyview.envs.optional import optional

ray: Any = optional("ray", extra="scale")

Handle = Any
"""Of an object in another process: `handle.method.remote(...)` gives a reference, `ray.get` what it refers to."""
