"""What a view of `MultiView` can be taken from. Declarations only; `MultiView` opens them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from manyview.envs.suite import Quality

Shape = tuple[int, int, int]
"""Height, width and channels."""


@dataclass(frozen=True)
class FromObservation:
    """An image inside the wrapped environment's observation.

    `"pixels/front"` is `observation["pixels"]["front"]`; nothing is an observation that is an image itself.
    """

    path: str = ""
    shape: Shape | None = None
    """Only for images of neither 1 nor 3 channels, or where the observation space does not say it."""


@dataclass(frozen=True)
class Orbit:
    """A camera that the model does not have: it follows a body from one direction. Angles are in degrees."""

    body: str
    distance: float
    """In the model's unit of length."""
    azimuth: float = 90.0
    """From where around the body: 0 looks along the x axis, 90 along the y axis."""
    elevation: float = -20.0
    """Negative looks down."""


@dataclass(frozen=True)
class MujocoCamera:
    """A camera of a Gymnasium MuJoCo environment: by its name or number in the model, or an `Orbit`."""

    camera: str | int | Orbit
    size: int | tuple[int, int] = 84
    """Pixels a side, or height and width."""
    quality: Quality = "standard"
    """`fast` leaves out shadows, reflections and smoothing."""

    @property
    def shape(self) -> Shape:
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return (height, width, 3)


@dataclass(frozen=True)
class Camera:
    """A function that returns an image, and returns None or raises when it has none. It may take the environment.

    With a deadline it is called in a thread of its own, over and over, and a view is what it returned last. If nothing
    that is new since the step began has come `deadline_s` after its end, the view is absent for this step. So a camera
    that is slow or hangs holds the robot up by its deadline at most.
    """

    read: Callable[..., Any]
    deadline_s: float | None = None
    shape: Shape | None = None
    """None: the camera is read once when the environment is made, to see."""

    def __post_init__(self) -> None:
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise ValueError(f"expected a deadline_s above 0, or None, got {self.deadline_s}")
