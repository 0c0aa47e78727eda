"""Run a trained policy: numpy, and onnxruntime for an exported one.

This package is shipped twice: as `manyview.runtime`, and as `manyview_runtime` in a distribution without torch, for
robots. It imports nothing else of manyview.
"""

from typing import TYPE_CHECKING

from .action_limits import ActionLimits
from .cameras import Frame
from .inputs import Observation
from .policy import Policy
from .protocols import CameraSource, CapturedFrame, PolicyLike, RobotLike
from .runner import PolicyRunner
from .runner_options import OnStale, RunnerOptions
from .runner_summary import RunnerSummary
from .spec import ActionBounds, DiscreteActions, PolicySpec, Resize, VectorSpec, ViewSpec
from .trace import Tick
from .trace_replay import TraceError, TraceReplay, read_trace, replay_trace

if TYPE_CHECKING:
    from .onnx_policy import load

__all__ = [
    "ActionBounds",
    "ActionLimits",
    "CameraSource",
    "CapturedFrame",
    "DiscreteActions",
    "Frame",
    "Observation",
    "OnStale",
    "Policy",
    "PolicyLike",
    "PolicyRunner",
    "PolicySpec",
    "Resize",
    "RobotLike",
    "RunnerOptions",
    "RunnerSummary",
    "Tick",
    "TraceError",
    "TraceReplay",
    "VectorSpec",
    "ViewSpec",
    "load",
    "read_trace",
    "replay_trace",
]


def __getattr__(name: str) -> object:
    """Import `load` on first use: it needs onnxruntime, which the rest of the package does not."""
    if name == "load":
        from .onnx_policy import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
