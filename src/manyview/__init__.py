"""manyview: reinforcement learning from several cameras with sparse rewards.

`manyview.make` gives a multi-view environment, `manyview.mem` holds the method as plain torch modules. This module
imports nothing: `manyview --help` and workers that only need environments must not pay for torch, and `python -m
manyview` runs it with the working directory on `sys.path`, where any module of the standard library may lie.
"""

TYPE_CHECKING = False  # that of `typing`, without its import
if TYPE_CHECKING:
    from typing import Any

    from manyview.envs import Fault, MultiView, get_views, make, make_vector, wrap

    __version__: str

__all__ = ["Fault", "MultiView", "get_views", "make", "make_vector", "wrap"]


def __getattr__(name: str) -> "Any":
    """The names of `__all__` when they are first used: they come from `manyview.envs`."""
    if name in __all__:
        from manyview import envs

        return getattr(envs, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("manyview")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
