"""manyview: reinforcement learning from several cameras with sparse rewards.

`manyview.make` creates a multi-view environment, `manyview.load` loads a trained policy, `manyview.mem` holds the
method as plain torch modules.

This module imports nothing: `manyview --help` and workers that only need environments must not load torch, and
`python -m manyview` executes it with the working directory on `sys.path`, where files may shadow the standard library.
"""

TYPE_CHECKING = False  # as in `typing`, without importing it
if TYPE_CHECKING:
    from typing import Any

    from manyview.deploy.policy import load
    from manyview.envs import Fault, MultiView, get_views, make, make_vector, wrap

    __version__: str

__all__ = ["Fault", "MultiView", "get_views", "load", "make", "make_vector", "wrap"]


def __getattr__(name: str) -> "Any":
    """Import the names of `__all__` on first use, all but `load` from `manyview.envs`."""
    if name == "load":
        from manyview.deploy.policy import load

        return load
    if name in __all__:
        from manyview import envs

        return getattr(envs, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("manyview")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
