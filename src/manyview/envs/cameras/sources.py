"""What a view of `MultiView` can be taken from. Declarations only; `MultiView` opens them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from manyview.envs.rendering.mujoco import ImageShape, Orbit
from manyview.envs.suite import RenderQuality


@dataclass(frozen=True)
class FromObservation:
    """An image inside the wrapped environment's observation.

    `"pixels/front"` is `observation["pixels"]["front"]`; nothing is an observation that is an image itself.
    """

    path: str = ""
    shape: ImageShape | None = None
    """Only for images of neither 1 nor 3 channels, or where the observation space does not say it."""


@dataclass(frozen=True)
class MujocoCamera:
    """A camera of a Gymnasium MuJoCo environment: by its name or number in the model, or an `Orbit`."""

    camera: str | int | Orbit
    size: int | tuple[int, int] = 84
    """Pixels a side, or height and width."""
    quality: RenderQuality = "standard"
    """`fast` leaves out shadows, reflections and smoothing."""

    def __post_init__(self) -> None:
        if self.quality not in get_args(RenderQuality):
            raise ValueError(f"expected a quality of {' or '.join(get_args(RenderQuality))}, got {self.quality!r}")
        if min(self.shape) < 1:
            raise ValueError(f"expected a size of at least 1 pixel, got {self.size}")

    @property
    def shape(self) -> ImageShape:
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
    shape: ImageShape | None = None
    """None: the camera is read once when the environment is made, to see."""

    def __post_init__(self) -> None:
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise ValueError(f"expected a deadline_s above 0, or None, got {self.deadline_s}")
