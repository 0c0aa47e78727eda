"""The opened cameras of `MultiView`: each gives a picture, or None, or raises."""

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from manyview.envs.drawing import Drawing, Shape, camera_of
from manyview.envs.layers.boundary import described, refuse, wrong_picture
from manyview.envs.own.latest import LatestFrame
from manyview.envs.own.sources import Camera, FromObservation, MujocoCamera
from manyview.envs.suite import Quality
from manyview.envs.views import Image

FIRST_PICTURE_S = 5.0
"""How long a camera with a deadline may take for the picture that tells its shape: many warm up."""


class Eye(ABC):
    shape: Shape

    def expect(self) -> None:  # noqa: B027  most have nothing to prepare
        """A step begins: what was seen before is old."""

    @abstractmethod
    def look(self, observation: Any, *, since_s: float) -> Any:
        """A picture, or None; `since_s` is when the looking began, by `time.monotonic`."""

    def stop(self) -> None:  # noqa: B027
        """Read no more; returns at once."""

    def close(self) -> None:  # noqa: B027
        """Let go of everything. The wrapped environment is closed by then."""


class ObservationEye(Eye):
    def __init__(self, env: gym.Env[Any, Any], source: FromObservation, *, who: str, name: str) -> None:
        self._path = source.path.split("/") if source.path else []
        if source.shape is not None:
            self.shape = source.shape
            return
        space: Any = env.observation_space
        for key in self._path:
            space = space.spaces.get(key) if isinstance(space, spaces.Dict) else None
        if not isinstance(space, spaces.Box):
            there = [path for path, box in _boxes(env.observation_space) if len(box.shape) in (2, 3)]
            raise ValueError(f"{who}: no image {source.path!r} for view {name!r} in its observation; it has {there}")
        self.shape = checked_shape(np.empty(space.shape, space.dtype), who, name)

    def look(self, observation: Any, *, since_s: float) -> Any:  # noqa: ARG002
        for key in self._path:
            observation = observation[key]
        return observation


def _boxes(space: spaces.Space[Any], path: str = "") -> Iterator[tuple[str, spaces.Box]]:
    if isinstance(space, spaces.Box):
        yield path, space
    elif isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _boxes(part, f"{path}/{key}" if path else key)


class MujocoEyes:
    """The MuJoCo cameras of one environment, which share a drawing."""

    def __init__(self, env: gym.Env[Any, Any], *, who: str, largest: int) -> None:
        self._env, self._who, self._largest = env, who, largest
        self._drawings: dict[Quality, Drawing] = {}

    def open(self, source: MujocoCamera, name: str) -> "MujocoEye":
        model, _ = self._world()
        try:
            camera_of(model, source.camera)
        except ValueError as error:
            raise ValueError(f"{self._who}: view {name!r}: {error}") from None
        if source.quality not in self._drawings:
            self._drawings[source.quality] = Drawing(self._world, largest=self._largest, quality=source.quality)
        return MujocoEye(self._drawings[source.quality], source)

    def _world(self) -> tuple[Any, Any]:
        bare = self._env.unwrapped
        model, data = getattr(bare, "model", None), getattr(bare, "data", None)
        if model is None or data is None:
            raise TypeError(
                f"{self._who} has no MuJoCo `model` and `data`; for other simulators give a function that draws: "
                "views={'front': lambda env: env.unwrapped.draw('front')}"
            )
        return model, data

    @property
    def renderer(self) -> str | None:
        return next((drawing.driver for drawing in self._drawings.values()), None)

    def close(self) -> None:
        for drawing in self._drawings.values():
            drawing.close()


class MujocoEye(Eye):
    def __init__(self, drawing: Drawing, source: MujocoCamera) -> None:
        self._drawing, self._camera, self.shape = drawing, source.camera, source.shape

    def look(self, observation: Any, *, since_s: float) -> Any:  # noqa: ARG002
        return self._drawing.draw(self._camera, self.shape)


class CallEye(Eye):
    """A function that is called when a picture is wanted."""

    def __init__(self, read: Callable[[], Any], shape: Shape | None, *, who: str, name: str) -> None:
        self._read = read
        self.shape = shape or _seen_shape(read, who, name)

    def look(self, observation: Any, *, since_s: float) -> Any:  # noqa: ARG002
        return self._read()


class LiveEye(Eye):
    """A function that is called all the time, and must have answered by a deadline."""

    def __init__(self, read: Callable[[], Any], shape: Shape | None, deadline_s: float, *, who: str, name: str) -> None:
        self._latest, self._deadline_s = LatestFrame(read), deadline_s
        first = partial(self._latest.take, until_s=time.monotonic() + FIRST_PICTURE_S)
        try:
            self.shape = shape or _seen_shape(first, who, name)
        except BaseException:
            self.close()
            raise

    def expect(self) -> None:
        self._latest.expect()

    def look(self, observation: Any, *, since_s: float) -> Any:  # noqa: ARG002
        try:
            return self._latest.take(until_s=since_s + self._deadline_s)
        except TimeoutError:
            raise TimeoutError(f"no new picture within {self._deadline_s} s") from None

    def stop(self) -> None:
        self._latest.stop()

    def close(self) -> None:
        self._latest.close()


def open_camera(env: gym.Env[Any, Any], source: Camera, *, who: str, name: str) -> Eye:
    read = partial(source.read, env) if _takes_environment(source.read, who, name) else source.read
    if source.deadline_s is None:
        return CallEye(read, source.shape, who=who, name=name)
    return LiveEye(read, source.shape, source.deadline_s, who=who, name=name)


def _takes_environment(read: Callable[..., Any], who: str, name: str) -> bool:
    try:
        parameters = inspect.signature(read).parameters.values()
    except ValueError:  # some functions written in C do not say
        return False
    wanted = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(wanted) > 1:
        raise TypeError(f"{who}: view {name!r}: expected a function of nothing or of the environment, got {read}")
    return len(wanted) == 1


def _seen_shape(read: Callable[[], Any], who: str, name: str) -> Shape:
    try:
        picture = read()
    except Exception as error:
        cause: Exception | None = error
        got = f"{type(error).__name__}: {error}"
    else:
        if picture is not None:
            return checked_shape(picture, who, name)
        cause, got = None, "None"
    raise refuse(
        who, f"view {name!r}", "a picture that tells its shape", f"{got}; or say it: Camera(read, shape=(84, 84, 3))"
    ) from cause


def checked_shape(picture: Any, who: str, name: str) -> Shape:
    """The shape of pictures like this one, if they are height, width and 1 or 3 channels in uint8."""
    expected = "uint8 of height, width and 1 or 3 channels"
    if isinstance(picture, np.ndarray) and picture.ndim in (2, 3):
        height, width, *channels = picture.shape
        shape = (height, width, channels[0] if channels else 1)
        if shape[2] not in (1, 3) and height in (1, 3):  # as it would be with the channels last
            shape = (width, shape[2], height)
        elif shape[2] == 4:
            shape = (height, width, 3)
        if picture.dtype == np.uint8 and shape[2] in (1, 3) and picture.shape in (shape, shape[:2]):
            return shape
        raise refuse(who, f"view {name!r}", expected, wrong_picture(picture, shape))
    raise refuse(who, f"view {name!r}", expected, described(picture))


def checked_picture(picture: Any, shape: Shape, who: str, name: str) -> Image:
    """A copy of the picture: whoever drew it may draw the next one into the same memory."""
    if isinstance(picture, np.ndarray) and picture.dtype == np.uint8:
        if picture.shape == shape:
            return picture.copy()
        if (*picture.shape, 1) == shape:
            return picture[..., None].copy()
    raise refuse(who, f"view {name!r}", f"uint8 of shape {shape}", wrong_picture(picture, shape))
