"""Run a trained policy: numpy, and onnxruntime for an exported one.

This package is shipped twice: as `manyview.runtime`, and as `manyview_runtime` in a distribution without torch, for
robots. It imports nothing else of manyview.
"""

from .inputs import Observation
from .policy import Policy, PolicyLike
from .spec import ActionBounds, DiscreteActions, PolicySpec, Resize, VectorSpec, ViewSpec

__all__ = [
    "ActionBounds",
    "DiscreteActions",
    "Observation",
    "Policy",
    "PolicyLike",
    "PolicySpec",
    "Resize",
    "VectorSpec",
    "ViewSpec",
    "load",
]


def __getattr__(name: str) -> object:
    """Import `load` on first use: it needs onnxruntime, which the rest of the package does not."""
    if name == "load":
        from .onnx_policy import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
