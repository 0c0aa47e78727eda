"""manyview: reinforcement learning from several cameras with sparse rewards.

`manyview.train` trains an agent, `manyview.resume` trains a run on, `manyview.load` loads a trained policy,
`manyview.make` creates a multi-view environment, and `manyview.mem` holds the method as plain torch modules.

This module imports nothing: `manyview --help` and workers that only need environments must not load torch, and
`python -m manyview` executes it with the working directory on `sys.path`, where files may shadow the standard library.
"""

TYPE_CHECKING = False  # as in `typing`, without importing it
if TYPE_CHECKING:
    from typing import Any

    from manyview.api import Run, resume, train
    from manyview.deploy.policy import load
    from manyview.envs import Fault, MultiView, get_views, make, make_vector, wrap

    __version__: str

__all__ = ["Fault", "MultiView", "Run", "get_views", "load", "make", "make_vector", "resume", "train", "wrap"]
_MODULES = {"Run": "api", "resume": "api", "train": "api", "load": "deploy.policy"}
"""Modules of the names in `__all__`; the others are in `envs`."""


def __getattr__(name: str) -> "Any":
    """Import the names of `__all__` on first use."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f"manyview.{_MODULES.get(name, 'envs')}"), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("manyview")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> "list[str]":
    return [*__all__, "__version__"]
