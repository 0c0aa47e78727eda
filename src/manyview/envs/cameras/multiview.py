"""Wrapper that gives any Gymnasium environment named camera views."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from manyview.envs.cameras.readers import (
    CameraReader,
    MujocoReaderFactory,
    ObservationReader,
    open_camera,
    validate_image,
)
from manyview.envs.cameras.sources import Camera, FromObservation, MujocoCamera
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
    validate_views,
    warn_camera_failures,
)

ViewSource = str | FromObservation | MujocoCamera | Camera | Callable[..., Any]
"""Source of a view; a string is a path in the observation, a function is read as a `Camera`."""


class MultiView(gym.Wrapper[Observation, Any, Any, Any]):
    """Replaces the observation of an environment by named views.

    Example::

        env = MultiView(gym.make("Hopper-v5"), views={
            "side": MujocoCamera("track"),                                       # a camera of the model
            "front": MujocoCamera(Orbit("torso", distance=3.0, azimuth=180.0)),  # an additional camera
            "wrist": "pixels/wrist",                                             # an image in the observation
            "top": top_camera.read,                                              # a function
            "hand": Camera(hand_camera.read, deadline_s=0.1),                    # a function that may hang
        })
        env = manyview.wrap(env, frame_stack=3)

    A camera that returns None or raises is absent for that step: its image is black and its mask 0. A `ViewWarning` is
    emitted when this starts, `info["camera_failures"]` has the reason, `counts` the number of failures, and the camera
    is read again at the next step.

    Images are uint8 of height x width x channels, or height x width for one channel. Anything else raises
    `ContractError` with a hint how to convert it. Rewards, flags, actions and `info` pass through unchanged.
    """

    def __init__(self, env: gym.Env[Any, Any], *, views: Mapping[str, ViewSource]) -> None:
        super().__init__(env)
        self.name = str(env)
        cameras = [source for source in views.values() if isinstance(source, MujocoCamera)]
        self._mujoco_readers = MujocoReaderFactory(
            env, env_name=self.name, max_size=max((max(c.shape) for c in cameras), default=0)
        )
        self._readers: dict[str, CameraReader] = {}
        try:
            for name, source in views.items():
                self._readers[name] = self._open_reader(name, source)
            self.views = validate_views([_build_view(name, reader) for name, reader in self._readers.items()])
        except BaseException:
            self._close_cameras()
            raise
        self.metadata = {**env.metadata, "views": self.views}
        self.observation_space = make_observation_space(self.views)
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

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        self._discard_stale_frames()
        observation, info = self.env.reset(seed=seed, options=options)
        return self._read_views(observation, info)

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        self._discard_stale_frames()
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
            try:
                image = self._readers[view.name].read(observation, start_s=start_s)
            except Exception as error:
                failures[view.name] = f"{type(error).__name__}: {error}"
                continue
            if image is None:
                failures[view.name] = "it returned None"
            else:
                images[view.name] = validate_image(image, view.shape, self.name, view.name)
        self._count_failures(failures)
        return build_observation(self.views, images), {**info, "camera_failures": failures} if failures else info

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


def _build_view(name: str, reader: CameraReader) -> View:
    return View(name, *reader.shape, fill=(0,) * reader.shape[2])
