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

from manyview.envs.cameras.latest_frame import LatestFrame
from manyview.envs.cameras.sources import Camera, FromObservation, MujocoCamera
from manyview.envs.contract import describe, describe_wrong_image, make_contract_error
from manyview.envs.rendering.mujoco import ImageShape, MujocoRenderer, resolve_camera
from manyview.envs.suite import RenderQuality
from manyview.envs.views import Image

FIRST_IMAGE_TIMEOUT_S = 5.0
"""How long a camera with a deadline may take for the picture that tells its shape: many warm up."""


class CameraReader(ABC):
    shape: ImageShape

    def discard_stale(self) -> None:  # noqa: B027  most have nothing to prepare
        """A step begins: what was seen before is old."""

    @abstractmethod
    def read(self, observation: Any, *, start_s: float) -> Any:
        """A picture, or None; `start_s` is when the looking began, by `time.monotonic`."""

    def stop(self) -> None:  # noqa: B027
        """Read no more; returns at once."""

    def close(self) -> None:  # noqa: B027
        """Let go of everything. The wrapped environment is closed by then."""


class ObservationReader(CameraReader):
    def __init__(self, env: gym.Env[Any, Any], source: FromObservation, *, env_name: str, name: str) -> None:
        self._path = source.path.split("/") if source.path else []
        if source.shape is not None:
            self.shape = source.shape
            return
        space: Any = env.observation_space
        for key in self._path:
            space = space.spaces.get(key) if isinstance(space, spaces.Dict) else None
        if not isinstance(space, spaces.Box):
            available = [path for path, box in _iter_boxes(env.observation_space) if len(box.shape) in (2, 3)]
            raise ValueError(
                f"{env_name}: no image {source.path!r} for view {name!r} in its observation; it has {available}"
            )
        self.shape = validate_image_shape(np.empty(space.shape, space.dtype), env_name, name)

    def read(self, observation: Any, *, start_s: float) -> Any:  # noqa: ARG002
        for key in self._path:
            observation = observation[key]
        return observation


def _iter_boxes(space: spaces.Space[Any], path: str = "") -> Iterator[tuple[str, spaces.Box]]:
    if isinstance(space, spaces.Box):
        yield path, space
    elif isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _iter_boxes(part, f"{path}/{key}" if path else key)


class MujocoReaderFactory:
    """The MuJoCo cameras of one environment, which share a drawing."""

    def __init__(self, env: gym.Env[Any, Any], *, env_name: str, max_size: int) -> None:
        self._env, self._env_name, self._max_size = env, env_name, max_size
        self._renderers: dict[RenderQuality, MujocoRenderer] = {}

    def open(self, source: MujocoCamera, name: str) -> "MujocoReader":
        model, _ = self._get_model_data()
        try:
            resolve_camera(model, source.camera)
        except ValueError as error:
            raise ValueError(f"{self._env_name}: view {name!r}: {error}") from None
        if source.quality not in self._renderers:
            self._renderers[source.quality] = MujocoRenderer(
                self._get_model_data, max_size=self._max_size, quality=source.quality
            )
        return MujocoReader(self._renderers[source.quality], source)

    def _get_model_data(self) -> tuple[Any, Any]:
        bare = self._env.unwrapped
        model, data = getattr(bare, "model", None), getattr(bare, "data", None)
        if model is None or data is None:
            raise TypeError(
                f"{self._env_name} has no MuJoCo `model` and `data`; for other simulators give a function that draws: "
                "views={'front': lambda env: env.unwrapped.draw('front')}"
            )
        return model, data

    @property
    def renderer(self) -> str | None:
        return next((drawing.driver for drawing in self._renderers.values()), None)

    def close(self) -> None:
        for renderer in self._renderers.values():
            renderer.close()


class MujocoReader(CameraReader):
    def __init__(self, renderer: MujocoRenderer, source: MujocoCamera) -> None:
        self._renderer, self._camera, self.shape = renderer, source.camera, source.shape

    def read(self, observation: Any, *, start_s: float) -> Any:  # noqa: ARG002
        return self._renderer.render(self._camera, self.shape)


class FunctionReader(CameraReader):
    """A function that is called when a picture is wanted."""

    def __init__(self, read: Callable[[], Any], shape: ImageShape | None, *, env_name: str, name: str) -> None:
        self._read = read
        self.shape = shape or _infer_shape(read, env_name, name)

    def read(self, observation: Any, *, start_s: float) -> Any:  # noqa: ARG002
        return self._read()


class ThreadedReader(CameraReader):
    """A function that is called all the time, and must have answered by a deadline."""

    def __init__(
        self, read: Callable[[], Any], shape: ImageShape | None, deadline_s: float, *, env_name: str, name: str
    ) -> None:
        self._latest_frame, self._deadline_s = LatestFrame(read), deadline_s
        first = partial(self._latest_frame.wait_for_frame, until_s=time.monotonic() + FIRST_IMAGE_TIMEOUT_S)
        try:
            self.shape = shape or _infer_shape(first, env_name, name)
        except BaseException:
            self.close()
            raise

    def discard_stale(self) -> None:
        self._latest_frame.discard_stale()

    def read(self, observation: Any, *, start_s: float) -> Any:  # noqa: ARG002
        try:
            return self._latest_frame.wait_for_frame(until_s=start_s + self._deadline_s)
        except TimeoutError:
            raise TimeoutError(f"no new picture within {self._deadline_s} s") from None

    def stop(self) -> None:
        self._latest_frame.stop()

    def close(self) -> None:
        self._latest_frame.close()


def open_camera(env: gym.Env[Any, Any], source: Camera, *, env_name: str, name: str) -> CameraReader:
    read = partial(source.read, env) if _needs_env(source.read, env_name, name) else source.read
    if source.deadline_s is None:
        return FunctionReader(read, source.shape, env_name=env_name, name=name)
    return ThreadedReader(read, source.shape, source.deadline_s, env_name=env_name, name=name)


def _needs_env(read: Callable[..., Any], env_name: str, name: str) -> bool:
    try:
        parameters = inspect.signature(read).parameters.values()
    except ValueError:  # some functions written in C do not say
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) > 1:
        raise TypeError(f"{env_name}: view {name!r}: expected a function of nothing or of the environment, got {read}")
    return len(required) == 1


def _infer_shape(read: Callable[[], Any], env_name: str, name: str) -> ImageShape:
    try:
        image = read()
    except Exception as error:
        cause: Exception | None = error
        got = f"{type(error).__name__}: {error}"
    else:
        if image is not None:
            return validate_image_shape(image, env_name, name)
        cause, got = None, "None"
    raise make_contract_error(
        env_name,
        f"view {name!r}",
        "a picture that tells its shape",
        f"{got}; or say it: Camera(read, shape=(84, 84, 3))",
    ) from cause


def validate_image_shape(image: Any, env_name: str, name: str) -> ImageShape:
    """The shape of pictures like this one, if they are height, width and 1 or 3 channels in uint8."""
    expected = "uint8 of height, width and 1 or 3 channels"
    if isinstance(image, np.ndarray) and image.ndim in (2, 3):
        height, width, *channels = image.shape
        shape = (height, width, channels[0] if channels else 1)
        if shape[2] not in (1, 3) and height in (1, 3):  # as it would be with the channels last
            shape = (width, shape[2], height)
        elif shape[2] == 4:
            shape = (height, width, 3)
        if image.dtype == np.uint8 and shape[2] in (1, 3) and image.shape in (shape, shape[:2]):
            return shape
        raise make_contract_error(env_name, f"view {name!r}", expected, describe_wrong_image(image, shape))
    raise make_contract_error(env_name, f"view {name!r}", expected, describe(image))


def validate_image(image: Any, shape: ImageShape, env_name: str, name: str) -> Image:
    """A copy of the picture: whoever drew it may draw the next one into the same memory."""
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        if image.shape == shape:
            return image.copy()
        if (*image.shape, 1) == shape:
            return image[..., None].copy()
    raise make_contract_error(env_name, f"view {name!r}", f"uint8 of shape {shape}", describe_wrong_image(image, shape))
