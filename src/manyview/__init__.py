"""manyview: reinforcement learning from several cameras with sparse rewards.

`manyview.make` gives a multi-view environment, `manyview.mem` holds the method as plain torch modules. This module
imports nothing heavy: `manyview --help` and workers that only need environments must not pay for torch.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyview.envs import Fault, MultiView, make, make_vector, views_of, wrap

__version__ = version("manyview")
__all__ = ["Fault", "MultiView", "make", "make_vector", "views_of", "wrap"]


def __getattr__(name: str) -> Any:
    """The names of `__all__` when they are first used: they come from `manyview.envs`."""
    if name in __all__:
        from manyview import envs

        return getattr(envs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
