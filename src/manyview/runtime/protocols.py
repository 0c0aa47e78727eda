"""Interfaces of what a `PolicyRunner` connects: a policy, its spec, cameras and a robot."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Observation = Mapping[str, NDArray[Any] | None]
"""An image [H, W, C] per view, None if it is masked, and a float32 array [size] per state vector."""


class ViewLike(Protocol):
    """Name and shape of a view, without stacked frames."""

    @property
    def name(self) -> str: ...
    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def channels(self) -> int: ...


class VectorLike(Protocol):
    """Name and size of a state vector."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...


class ResizeLike(Protocol):
    """Resizing of a camera's images to the size of its view."""

    def apply(self, image: NDArray[np.uint8], view: Any) -> NDArray[np.uint8]: ...


class SpecLike(Protocol):
    """Inputs of a policy."""

    @property
    def views(self) -> Sequence[ViewLike]: ...
    @property
    def vectors(self) -> Sequence[VectorLike]: ...
    @property
    def resize(self) -> ResizeLike | None:
        """None if only images of the exact size are valid."""


class PolicyLike(Protocol):
    """A policy, whatever runs it; it stacks frames itself."""

    @property
    def spec(self) -> SpecLike: ...

    def reset(self) -> None:
        """Forget earlier observations: a new episode starts."""

    def act(self, observation: Observation) -> NDArray[Any]:
        """Return the action in the environment's units."""


class CapturedFrame(NamedTuple):
    """An image with the time of its capture, for cameras that know it."""

    image: NDArray[Any] | None
    captured_s: float
    """Time of the runner's clock, `time.monotonic` by default."""


class CameraSource(Protocol):
    """A camera driver. A method `close`, if there is one, is called after the last read."""

    def read(self) -> Any:
        """Return an image, uint8 [H, W, C] in RGB, or a `CapturedFrame`; may block, raise or return None."""


Camera = CameraSource | Callable[[], Any]
"""A camera driver, or its function `read`."""


class RobotLike(Protocol):
    """A robot, as `manyview run --robot module:make_robot` takes it.

    Optional attributes are `vectors`, a function per state vector, `limits`, an `ActionLimits`, and `close`.
    """

    @property
    def cameras(self) -> Mapping[str, Camera | None]: ...
    @property
    def safe_action(self) -> Any:
        """Action at which the robot stops."""

    def send_action(self, action: NDArray[Any]) -> None:
        """Execute an action; must return soon."""
