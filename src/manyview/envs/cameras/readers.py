"""Readers of the cameras of `MultiView`: a read returns an image or None, or raises."""

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from manyview.envs.cameras.sources import Camera, FromObservation, MujocoCamera
from manyview.envs.contract import describe, describe_wrong_image, make_contract_error
from manyview.envs.rendering.mujoco import ImageShape, MujocoRenderer, resolve_camera
from manyview.envs.suite import RenderQuality
from manyview.envs.views import Image
from manyview.runtime.latest_frame import LatestFrame

FIRST_IMAGE_TIMEOUT_S = 5.0
"""Maximum wait for the first image of a camera with a deadline, which gives its shape: many cameras warm up."""


class CameraReader(ABC):
    """Base class of camera readers."""

    shape: ImageShape

    def discard_stale(self) -> None:  # noqa: B027  most readers have nothing to discard
        """Discard images from before the step that starts now."""

    @abstractmethod
    def read(self, observation: Any, *, start_s: float) -> Any:
        """Return an image or None.

        `start_s` is the `time.monotonic` at which all cameras started reading.
        """

    def stop(self) -> None:  # noqa: B027
        """Stop reading; returns immediately."""

    def close(self) -> None:  # noqa: B027
        """Release all resources, after the wrapped environment is closed."""


class ObservationReader(CameraReader):
    """Reads an image from the observation of the wrapped environment."""

    def __init__(self, env: gym.Env[Any, Any], source: FromObservation, *, env_name: str, name: str) -> None:
        self._path, self._convert = source.path.split("/") if source.path else [], source.convert
        if source.shape is not None:
            self.shape = source.shape
            return
        space: Any = env.observation_space
        for key in self._path:
            space = space.spaces.get(key) if isinstance(space, spaces.Dict) else None
        if not isinstance(space, spaces.Box):
            available = [path for path, box in _iter_boxes(env.observation_space) if len(box.shape) in (2, 3)]
            raise ValueError(
                f"{env_name}: no image for view {name!r} in the observation: expected one of {available}, got "
                f"{source.path!r}"
            )
        self.shape = validate_image_shape(source.convert(np.empty(space.shape, space.dtype)), env_name, name)

    def read(self, observation: Any, *, start_s: float) -> Any:  # noqa: ARG002
        for key in self._path:
            observation = observation[key]
        return self._convert(observation)


class MujocoReaderFactory:
    """Opens the MuJoCo cameras of an environment; cameras of equal quality share a renderer."""

    def __init__(self, env: gym.Env[Any, Any], *, env_name: str, max_size: int) -> None:
        self._env, self._env_name, self._max_size = env, env_name, max_size
        self._renderers: dict[RenderQuality, MujocoRenderer] = {}

    def open(self, source: MujocoCamera, name: str) -> "MujocoReader":
        """Open a camera; `ValueError` if the model has no such camera."""
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
                f"{self._env_name} has no MuJoCo `model` and `data`. For other simulators give a render function: "
                "views={'front': lambda env: env.unwrapped.render_camera('front')}"
            )
        return model, data

    @property
    def renderer(self) -> str | None:
        """OpenGL's name of the renderer; None without a camera."""
        return next((renderer.driver for renderer in self._renderers.values()), None)

    def close(self) -> None:
        """Close all renderers."""
        for renderer in self._renderers.values():
            renderer.close()


class MujocoReader(CameraReader):
    """Renders a camera of a MuJoCo environment."""

    def __init__(self, renderer: MujocoRenderer, source: MujocoCamera) -> None:
        self._renderer, self._camera, self.shape = renderer, source.camera, source.shape

    def read(self, observation: Any, *, start_s: float) -> Any:  # noqa: ARG002
        return self._renderer.render(self._camera, self.shape)


class FunctionReader(CameraReader):
    """Calls a function for each image."""

    def __init__(self, read: Callable[[], Any], shape: ImageShape | None, *, env_name: str, name: str) -> None:
        self._read = read
        self.shape = shape or _infer_shape(read, env_name, name)

    def read(self, observation: Any, *, start_s: float) -> Any:  # noqa: ARG002
        return self._read()


class ThreadedReader(CameraReader):
    """Calls a function in a background thread; a read waits up to a deadline."""

    def __init__(
        self, read: Callable[[], Any], shape: ImageShape | None, deadline_s: float, *, env_name: str, name: str
    ) -> None:
        self._step_start_s, self._deadline_s = time.monotonic(), deadline_s
        self._latest_frame = LatestFrame(partial(_read_copy, read))
        until_s = self._step_start_s + FIRST_IMAGE_TIMEOUT_S
        first = partial(self._latest_frame.wait_for_frame, since_s=self._step_start_s, until_s=until_s)
        try:
            self.shape = shape or _infer_shape(first, env_name, name)
        except BaseException:
            self.close()
            raise

    def discard_stale(self) -> None:
        self._step_start_s = time.monotonic()

    def read(self, observation: Any, *, start_s: float) -> Any:  # noqa: ARG002
        # A step may last long: an image from its start would not show its end.
        since_s = max(self._step_start_s, start_s - self._deadline_s)
        try:
            return self._latest_frame.wait_for_frame(since_s=since_s, until_s=start_s + self._deadline_s)
        except TimeoutError:
            raise TimeoutError(f"no new image within {self._deadline_s} s") from None

    def stop(self) -> None:
        self._latest_frame.stop()

    def close(self) -> None:
        self._latest_frame.close()


def _read_copy(read: Callable[[], Any]) -> Any:
    """Return a copy of the image, whose memory a driver may reuse; None if there is none."""
    image = read()
    return None if image is None else np.array(image)


def open_camera(env: gym.Env[Any, Any], source: Camera, *, env_name: str, name: str) -> CameraReader:
    """Open a camera function, in a background thread if it has a deadline."""
    capture = partial(source.read, env) if _needs_env(source.read, env_name, name) else source.read

    def read() -> Any:
        return source.convert(capture())

    if source.deadline_s is None:
        return FunctionReader(read, source.shape, env_name=env_name, name=name)
    return ThreadedReader(read, source.shape, source.deadline_s, env_name=env_name, name=name)


def validate_image_shape(image: Any, env_name: str, name: str) -> ImageShape:
    """Return the shape [H, W, C] of an image [H, W] or [H, W, C].

    Raises `ContractError` unless it is uint8 with 1 or 3 channels.
    """
    expected = "uint8 of height, width and 1 or 3 channels"
    if isinstance(image, np.ndarray) and image.ndim in (2, 3):
        height, width, *channels = image.shape
        shape = (height, width, channels[0] if channels else 1)
        if shape[2] not in (1, 3) and height in (1, 3):  # channels first: the expected shape has them last
            shape = (width, shape[2], height)
        elif shape[2] == 4:
            shape = (height, width, 3)
        if image.dtype == np.uint8 and shape[2] in (1, 3) and image.shape in (shape, shape[:2]):
            return shape
        raise make_contract_error(env_name, f"view {name!r}", expected, describe_wrong_image(image, shape))
    raise make_contract_error(env_name, f"view {name!r}", expected, describe(image))


def validate_image(image: Any, shape: ImageShape, env_name: str, name: str) -> Image:
    """Return a copy of the image, whose memory its camera may reuse.

    Raises `ContractError` unless it is uint8 of `shape`.
    """
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        if image.shape == shape:
            return image.copy()
        if (*image.shape, 1) == shape:
            return image[..., None].copy()
    raise make_contract_error(env_name, f"view {name!r}", f"uint8 of shape {shape}", describe_wrong_image(image, shape))


def _needs_env(read: Callable[..., Any], env_name: str, name: str) -> bool:
    try:
        parameters = inspect.signature(read).parameters.values()
    except ValueError:  # some C functions have no signature
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) > 1:
        raise TypeError(
            f"{env_name}: view {name!r}: expected a function without arguments or of the environment, got {read}"
        )
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
        "a first image to infer the shape from",
        f"{got}. Fix the camera or declare the shape: Camera(read, shape=(84, 84, 3))",
    ) from cause


def _iter_boxes(space: spaces.Space[Any], path: str = "") -> Iterator[tuple[str, spaces.Box]]:
    if isinstance(space, spaces.Box):
        yield path, space
    elif isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _iter_boxes(part, f"{path}/{key}" if path else key)
