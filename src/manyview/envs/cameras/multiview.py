"""Wrapper that gives any Gymnasium environment named camera views."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.envs.cameras.readers import (
    CameraReader,
    MujocoReaderFactory,
    ObservationReader,
    open_camera,
    validate_image,
)
from manyview.envs.cameras.sources import Camera, FromObservation, MujocoCamera
from manyview.envs.cameras.state_reader import StateReader
from manyview.envs.views import (
    Image,
    Observation,
    State,
    View,
    build_observation,
    make_observation_space,
    restore,
    snapshot,
    validate_counts,
    validate_state_vectors,
    validate_views,
    warn_camera_failures,
)
from manyview.runtime.image_resize import Aspect, check_resize, resize_image

ViewSource = str | FromObservation | MujocoCamera | Camera | Callable[..., Any]
"""Source of a view; a string is a path in the observation, a function is read as a `Camera`."""


class MultiView(gym.Wrapper[Observation, Any, Any, Any]):
    """Replaces the observation of an environment by named views.

    Example::

        env = MultiView(gym.make("Hopper-v5"), views={
            "side": MujocoCamera("track"),                                       # a camera of the model
            "front": MujocoCamera(Orbit("torso", distance=3.0, azimuth=180.0)),  # an additional camera
            "wrist": "pixels/wrist",                                             # an image in the observation
            "top": Camera(top_camera.read, channels="bgr"),                      # a function, such as OpenCV's
            "hand": Camera(hand_camera.read, deadline_s=0.1),                    # a function that may hang
        }, state=("joints", "gripper"), image_size=84)                           # vectors in the observation
        env = manyview.wrap(env, frame_stack=3)

    A camera that returns None or raises is absent for that step: its image is black and its mask 0. A `ViewWarning` is
    emitted when this starts, `info["camera_failures"]` has the reason, `counts` the number of failures, and the camera
    is read again at the next step.

    Images are uint8 of height x width x channels, or height x width for one channel. Anything else raises
    `ContractError` with a hint how to convert it. Rewards, flags and `info` pass through unchanged.

    `state` names vectors beside the views: keys of a dict observation, or one name for an observation that is a vector.
    They become float32 and must be finite.

    `image_size` area-averages all views to squares of this side, in pixels; None keeps the sizes of the cameras.
    `aspect` is the treatment of cameras that are not square, also where `make` or a run sets the size.
    `rescale_actions` replaces the bounds of the actions, which must be finite, by [-1, 1].
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        views: Mapping[str, ViewSource],
        state: Sequence[str] = (),
        image_size: int | None = None,
        aspect: Aspect = "crop",
        rescale_actions: bool = False,
    ) -> None:
        super().__init__(env)
        self.name = str(env)
        check_resize(1 if image_size is None else image_size, aspect)
        self._image_size, self._aspect = image_size, aspect
        self._action_bounds = _find_action_bounds(env.action_space, self.name) if rescale_actions else None
        if self._action_bounds is not None:
            self.action_space = spaces.Box(-1.0, 1.0, env.action_space.shape, np.float32)
        self._state_reader = StateReader(env, state, env_name=self.name)
        cameras = [source for source in views.values() if isinstance(source, MujocoCamera)]
        self._mujoco_readers = MujocoReaderFactory(
            env, env_name=self.name, max_size=max((max(c.shape) for c in cameras), default=0)
        )
        self._readers: dict[str, CameraReader] = {}
        try:
            for name, source in views.items():
                self._readers[name] = self._open_reader(name, source)
            self.views = validate_views([self._build_view(name) for name in self._readers])
            self.state_vectors = validate_state_vectors(self._state_reader.vectors, self.views)
        except BaseException:
            self._close_cameras()
            raise
        self.metadata = {
            **env.metadata,
            "views": self.views,
            "state_vectors": self.state_vectors,
            "aspect": aspect,
            "action_bounds": self._action_bounds,
            "resize_sizes": () if image_size is None else (image_size,),
            "camera_sizes": {name: reader.shape[:2] for name, reader in self._readers.items()},
        }
        self.observation_space = make_observation_space(self.views, vectors=self.state_vectors)
        self.counts = {f"camera_failures/{name}": 0 for name in self._readers}
        self._failing_cameras: frozenset[str] = frozenset()

    def _open_reader(self, name: str, source: ViewSource) -> CameraReader:
        if isinstance(source, MujocoCamera):
            return self._mujoco_readers.open(source, name)
        if isinstance(source, str | FromObservation):
            image = FromObservation(source) if isinstance(source, str) else source
            return ObservationReader(self.env, image, env_name=self.name, name=name)
        camera = source if isinstance(source, Camera) else Camera(source)
        return open_camera(self.env, camera, env_name=self.name, name=name)

    def _build_view(self, name: str) -> View:
        height, width, channels = self._readers[name].shape
        return View(name, self._image_size or height, self._image_size or width, channels, fill=(0,) * channels)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        self._discard_stale_frames()
        observation, info = self.env.reset(seed=seed, options=options)
        return self._read_views(observation, info)

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        self._discard_stale_frames()
        if self._action_bounds is not None:
            low, high = self._action_bounds
            action = np.clip(low + (np.asarray(action, np.float64) + 1.0) * 0.5 * (high - low), low, high)
            action = action.astype(self.env.action_space.dtype)
        observation, reward, terminated, truncated, info = self.env.step(action)
        views, info = self._read_views(observation, info)
        return views, reward, terminated, truncated, info

    def _discard_stale_frames(self) -> None:
        for reader in self._readers.values():
            reader.discard_stale()

    def _read_views(self, observation: Any, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        start_s = time.monotonic()  # shared by all cameras: their deadlines run in parallel
        images: dict[str, Image | None] = {}
        failures: dict[str, str] = {}
        for view in self.views:
            images[view.name] = None
            reader = self._readers[view.name]
            try:
                image = reader.read(observation, start_s=start_s)
            except Exception as error:
                failures[view.name] = f"{type(error).__name__}: {error}"
                continue
            if image is None:
                failures[view.name] = "it returned None"
            else:
                images[view.name] = self._resize(validate_image(image, reader.shape, self.name, view.name))
        self._count_failures(failures)
        vectors = self._state_reader.read(observation)
        return build_observation(self.views, images, vectors), (
            {**info, "camera_failures": failures} if failures else info
        )

    def _resize(self, image: Image) -> Image:
        return image if self._image_size is None else resize_image(image, self._image_size, self._aspect)

    def _count_failures(self, failures: Mapping[str, str]) -> None:
        for name in failures:
            self.counts[f"camera_failures/{name}"] += 1
        self._failing_cameras = warn_camera_failures(self.name, failures, self._failing_cameras)

    def snapshot(self) -> State:
        return {"env": snapshot(self.env), "counts": dict(self.counts)}

    def restore(self, state: State) -> Observation:
        """Restore the wrapped environment and read all cameras.

        The wrapped environment's `restore` must return its observation.
        """
        self._discard_stale_frames()
        observation = restore(self.env, state["env"])
        views, _ = self._read_views(observation, {})
        self.counts = validate_counts(state["counts"], self.counts)
        return views

    @property
    def renderer(self) -> str | None:
        """OpenGL's name of the renderer; None without a `MujocoCamera`."""
        return self._mujoco_readers.renderer

    def close(self) -> None:
        for reader in self._readers.values():
            reader.stop()
        super().close()  # may end a hanging read
        self._close_cameras()

    def _close_cameras(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._mujoco_readers.close()


def _find_action_bounds(space: spaces.Space[Any], env_name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the bounds of the actions; `ValueError` unless they are finite and of floats."""
    if not (isinstance(space, spaces.Box) and space.is_bounded() and np.issubdtype(space.dtype, np.floating)):
        raise ValueError(
            f"{env_name}: cannot rescale actions: expected a Box of floats with finite bounds, got {space}. "
            "Set the bounds of the robot in its action_space, or rescale_actions=False."
        )
    return space.low.astype(np.float64), space.high.astype(np.float64)
