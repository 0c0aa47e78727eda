"""Any Gymnasium environment, seen by several cameras."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from manyview.envs.own.eyes import Eye, MujocoEyes, ObservationEye, checked_picture, open_camera
from manyview.envs.own.sources import Camera, FromObservation, MujocoCamera
from manyview.envs.views import (
    Image,
    Observation,
    State,
    View,
    checked_views,
    observation_space,
    observed,
    restore,
    restored_counts,
    snapshot,
    warn_of_failures,
)

Source = str | FromObservation | MujocoCamera | Camera | Callable[..., Any]


class MultiView(gym.Wrapper[Observation, Any, Any, Any]):
    """Gives an environment named views in place of its observation::

        env = MultiView(gym.make("Hopper-v5"), views={
            "side": MujocoCamera("track"),                                       # a camera of the model
            "front": MujocoCamera(Orbit("torso", distance=3.0, azimuth=180.0)),  # one that the model does not have
            "wrist": "pixels/wrist",                                             # an image in the observation
            "top": top_camera.read,                                              # a function
            "hand": Camera(hand_camera.read, deadline_s=0.1),                    # a function that may hang
        })
        env = manyview.wrap(env, frame_stack=3)

    A camera that gives None or raises is absent for that step: its picture is black and its mask 0, a warning comes
    when it begins, `info["camera_failures"]` says why, `counts` has how often, and it is tried again at the next step.

    Pictures are uint8 and height x width x channels, or height x width, which is one channel. Anything else is refused
    with what would put it right. Rewards, ends, actions and `info` are the wrapped environment's own.
    """

    def __init__(self, env: gym.Env[Any, Any], *, views: Mapping[str, Source]) -> None:
        super().__init__(env)
        self.name = str(env)
        cameras = [source for source in views.values() if isinstance(source, MujocoCamera)]
        self._mujoco = MujocoEyes(env, who=self.name, largest=max((max(c.shape) for c in cameras), default=0))
        self._eyes: dict[str, Eye] = {}
        try:
            for name, source in views.items():
                self._eyes[name] = self._opened(name, source)
            self.views = checked_views([_view(name, eye) for name, eye in self._eyes.items()])
        except BaseException:
            self._close_cameras()
            raise
        self.metadata = {**env.metadata, "views": self.views}
        self.observation_space = observation_space(self.views)
        self.counts = {f"camera_failures/{name}": 0 for name in self._eyes}
        self._failing: frozenset[str] = frozenset()

    def _opened(self, name: str, source: Source) -> Eye:
        if isinstance(source, MujocoCamera):
            return self._mujoco.open(source, name)
        if isinstance(source, str | FromObservation):
            image = FromObservation(source) if isinstance(source, str) else source
            return ObservationEye(self.env, image, who=self.name, name=name)
        camera = source if isinstance(source, Camera) else Camera(source)
        return open_camera(self.env, camera, who=self.name, name=name)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        self._expect()
        observation, info = self.env.reset(seed=seed, options=options)
        return self._look(observation, info)

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        self._expect()
        observation, reward, terminated, truncated, info = self.env.step(action)
        seen, info = self._look(observation, info)
        return seen, reward, terminated, truncated, info

    def _expect(self) -> None:
        for eye in self._eyes.values():
            eye.expect()

    def _look(self, observation: Any, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        since_s = time.monotonic()  # of all cameras: their deadlines run side by side
        images: dict[str, Image | None] = {}
        failures: dict[str, str] = {}
        for view in self.views:
            images[view.name] = None
            try:
                picture = self._eyes[view.name].look(observation, since_s=since_s)
            except Exception as error:
                failures[view.name] = f"{type(error).__name__}: {error}"
                continue
            if picture is None:
                failures[view.name] = "it gave None"
            else:
                images[view.name] = checked_picture(picture, view.shape, self.name, view.name)
        self._note(failures)
        return observed(self.views, images), {**info, "camera_failures": failures} if failures else info

    def _note(self, failures: Mapping[str, str]) -> None:
        for name in failures:
            self.counts[f"camera_failures/{name}"] += 1
        self._failing = warn_of_failures(self.name, failures, self._failing)

    def snapshot(self) -> State:
        return {"env": snapshot(self.env), "counts": dict(self.counts)}

    def restore(self, state: State) -> Observation:
        """As the wrapped environment does it; its `restore` returns its observation."""
        self._expect()
        observation = restore(self.env, state["env"])
        seen, _ = self._look(observation, {})
        self.counts = restored_counts(state["counts"], self.counts)
        return seen

    @property
    def renderer(self) -> str | None:
        """What OpenGL calls the thing that draws; None without a camera of MuJoCo."""
        return self._mujoco.renderer

    def close(self) -> None:
        for eye in self._eyes.values():
            eye.stop()
        super().close()  # which may be what ends a read that hangs
        self._close_cameras()

    def _close_cameras(self) -> None:
        for eye in self._eyes.values():
            eye.close()
        self._mujoco.close()


def _view(name: str, eye: Eye) -> View:
    return View(name, *eye.shape, fill=(0,) * eye.shape[2])
