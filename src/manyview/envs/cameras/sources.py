"""Declarations of the view sources of `MultiView`, which opens them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from manyview.envs.rendering.mujoco import ImageShape, Orbit
from manyview.envs.suite import RenderQuality
from manyview.runtime.image_resize import Channels, convert_channels


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """Memory format of a source's images; views are height x width x RGB."""

    channels: Channels = "rgb"
    """Order of the color channels; OpenCV's is `bgr`."""
    channels_first: bool = False
    """True for images of channels x height x width."""

    def __post_init__(self) -> None:
        if self.channels not in get_args(Channels):
            raise ValueError(f"invalid channels: expected {' or '.join(get_args(Channels))}, got {self.channels!r}")

    def convert(self, image: Any) -> Any:
        """Return an image as height x width x RGB; anything else unchanged."""
        return convert_channels(image, self.channels, channels_first=self.channels_first)


@dataclass(frozen=True)
class FromObservation(ImageFormat):
    """An image in the observation of the wrapped environment.

    The path `"pixels/front"` is `observation["pixels"]["front"]`; the empty path is the observation itself.
    """

    path: str = ""
    shape: ImageShape | None = None
    """Needed only for images of neither 1 nor 3 channels, or if the observation space does not declare it."""


@dataclass(frozen=True)
class MujocoCamera:
    """A camera of a Gymnasium MuJoCo environment.

    It is the name or number of a camera in the model, or an `Orbit`.
    """

    camera: str | int | Orbit
    size: int | tuple[int, int] = 84
    """Side of a square image, or height and width, in pixels."""
    quality: RenderQuality = "standard"
    """`fast` omits shadows, reflections and multisampling; `smooth` also area-averages."""

    def __post_init__(self) -> None:
        if self.quality not in get_args(RenderQuality):
            raise ValueError(f"invalid quality: expected {' or '.join(get_args(RenderQuality))}, got {self.quality!r}")
        if min(self.shape) < 1:
            raise ValueError(f"invalid size: expected at least 1 pixel, got {self.size}")

    @property
    def shape(self) -> ImageShape:
        """Height, width and channels."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return (height, width, 3)


@dataclass(frozen=True)
class Camera(ImageFormat):
    """A function that returns an image, and returns None or raises if it has none.

    The function takes no argument or the environment. With a deadline it is called repeatedly in a background thread,
    and the view is its newest image. An image counts if its read started after the environment's step did, and at most
    `deadline_s` before the step's end. If there is none `deadline_s` after the step, the view is absent. So a slow or
    hanging camera delays the robot by at most its deadline. Give it two intervals between images, or more.
    """

    read: Callable[..., Any]
    deadline_s: float | None = None
    shape: ImageShape | None = None
    """Height, width and channels; None reads the camera once at construction to infer them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise ValueError(f"invalid deadline_s: expected a value above 0, or None, got {self.deadline_s}")
