"""Cameras that fail on purpose: what a robot will meet, met in training and in tests."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import gymnasium as gym
import numpy as np

from manyview.envs.foreground import pack_foreground, unpack_foreground
from manyview.envs.views import MASK, Image, Observation, State, View, ViewWrapper, get_views
from manyview.utils.seeding import get_rng_state, restore_rng

FaultKind = Literal["black", "frozen", "noise", "late", "gone"]
FaultDuration = Literal["frame", "episode", "forever"]

_SEED_STREAM = 0xFA17  # beside the seed, so that the faults draw other numbers than the environment does


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way in which one camera fails.

    It begins either with a probability in every frame, or at a step of every episode (0 is the reset). A camera that
    is `frozen` repeats the last picture it gave in this episode, the first one if there is none before; one that is
    `late` shows each picture `late_frames` steps after it was taken, and the episode's first until then.
    """

    view: str
    kind: FaultKind
    lasts: FaultDuration = "frame"
    probability: float | None = None
    at_step: int | None = None
    late_frames: int = 3
    """How old the pictures of a late camera are."""

    def __post_init__(self) -> None:
        for value, choices in ((self.kind, get_args(FaultKind)), (self.lasts, get_args(FaultDuration))):
            if value not in choices:
                raise ValueError(f"a fault of {self.view!r}: expected one of {', '.join(choices)}, got {value!r}")
        if (self.probability is None) == (self.at_step is None):
            raise ValueError(
                f"a fault of {self.view!r} needs either a probability or at_step, "
                f"got {self.probability} and {self.at_step}"
            )
        if self.probability is not None and not 0 <= self.probability <= 1:
            raise ValueError(f"a fault of {self.view!r}: expected a probability from 0 to 1, got {self.probability}")
        if self.at_step is not None and self.at_step < 0:
            raise ValueError(f"a fault of {self.view!r}: expected at_step of at least 0, got {self.at_step}")
        if self.late_frames < 1:
            raise ValueError(f"a fault of {self.view!r}: expected late_frames of at least 1, got {self.late_frames}")


class CameraFrames(NamedTuple):
    """What a camera gave at one moment: its picture, then those of the views derived from it."""

    images: tuple[Image, ...]
    present: tuple[bool, ...]


class FaultInjector(ViewWrapper):
    """Breaks cameras as declared. It works on single frames, so it stands below the frame stack.

    The faults that show are told in `info["faults"]`, as `{"side": "black"}`. A view derived from a camera fails with
    it: behind a black or noisy camera it is cut anew out of what that camera shows. Of several faults of one camera
    the one declared first shows. A camera that is absent by itself stays absent.

    `reset(seed=...)` begins anew in every respect: it seeds the faults too, and repairs those that last for ever.
    """

    def __init__(self, env: gym.Env[Observation, Any], faults: Sequence[Fault]) -> None:
        super().__init__(env)
        self.faults = tuple(faults)
        self._mask_index = {view.name: column for column, view in enumerate(self.views)}
        self._camera_views = {
            name: self._list_camera_views(name) for name in dict.fromkeys(fault.view for fault in faults)
        }
        oldest = {
            name: [f.late_frames for f in faults if (f.view, f.kind) == (name, "late")] for name in self._camera_views
        }
        self._recent_frames = {name: deque[CameraFrames](maxlen=max([1, *frames])) for name, frames in oldest.items()}
        """The last true shots of this episode, by camera."""
        self._frozen_frames: dict[int, CameraFrames] = {}
        """What stands still while a fault is active, by the fault's number."""
        self._active = [False] * len(self.faults)
        self._step = 0
        self._rng = np.random.default_rng()
        self._last_observation: Observation = {}

    def _list_camera_views(self, name: str) -> tuple[View, ...]:
        """The camera and the views that are derived from it."""
        views = {view.name: view for view in get_views(self.env)}
        if name not in views:
            raise ValueError(f"a fault of {name!r}: {self.env} has the views {list(views)}")
        if (camera := views[name].derived_from) is not None:
            raise ValueError(f"{name!r} has no camera of its own: declare the fault for {camera!r}, and both will fail")
        return (views[name], *(view for view in self.views if view.derived_from == name))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            self._rng = np.random.default_rng([_SEED_STREAM, seed])
        for number, fault in enumerate(self.faults):
            if seed is not None or fault.lasts != "forever":
                self._active[number] = False
                self._frozen_frames.pop(number, None)
        for shots in self._recent_frames.values():
            shots.clear()
        self._step = 0
        return self._inject(observation, info)

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._step += 1
        observation, info = self._inject(observation, info)
        return observation, reward, terminated, truncated, info

    def _inject(self, observation: Observation, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        camera_frames = {name: self._read_frames(observation, family) for name, family in self._camera_views.items()}
        uniforms = self._rng.random(len(self.faults))
        active_faults: dict[str, int] = {}
        for number, fault in enumerate(self.faults):
            starts = self._step == fault.at_step if fault.probability is None else uniforms[number] < fault.probability
            self._active[number] = bool(starts) or (self._active[number] and fault.lasts != "frame")
            if not self._active[number]:
                self._frozen_frames.pop(number, None)
                continue
            if fault.kind == "frozen" and number not in self._frozen_frames:
                self._frozen_frames[number] = self._get_earlier(fault.view, 1, camera_frames[fault.view])
            active_faults.setdefault(fault.view, number)
        injected = {**observation, MASK: observation[MASK].copy()}
        for name, number in active_faults.items():
            self._write_frames(
                injected, self._camera_views[name], self._apply_fault(number, camera_frames[name], uniforms[number])
            )
        for name, shot in camera_frames.items():
            self._recent_frames[name].append(shot)
        self._last_observation = injected
        kinds = {name: self.faults[number].kind for name, number in active_faults.items()}
        return injected, {**info, "faults": kinds} if kinds else info

    def _apply_fault(self, index: int, frames: CameraFrames, uniform: float) -> CameraFrames:
        fault = self.faults[index]
        match fault.kind:
            case "black":
                return self._replace_image(np.zeros_like(frames.images[0]), frames, fault.view)
            case "noise":
                # From a generator of its own: noise here must not shift when other faults begin.
                noise_rng = np.random.default_rng(int(uniform * 2**53))
                noise = noise_rng.integers(256, size=frames.images[0].shape, dtype=np.uint8)
                return self._replace_image(noise, frames, fault.view)
            case "frozen":
                return self._frozen_frames[index]
            case "late":
                return self._get_earlier(fault.view, fault.late_frames, frames)
            case "gone":
                return frames._replace(present=(False,) * len(frames.present))

    def _get_earlier(self, name: str, delay: int, current: CameraFrames) -> CameraFrames:
        """The shot of so many frames ago, or the episode's first."""
        history = [*self._recent_frames[name], current]
        return history[max(0, len(history) - 1 - delay)]

    def _replace_image(self, image: Image, frames: CameraFrames, name: str) -> CameraFrames:
        """`shot` had the camera shown `image`: the derived views are cut out of that."""
        _, *derived = self._camera_views[name]
        derived_images = [
            unpack_foreground(image, pack_foreground(true, view.fill), view.fill)
            for view, true in zip(derived, frames.images[1:], strict=True)
        ]
        return CameraFrames((image, *derived_images), frames.present)

    def _read_frames(self, observation: Observation, views: tuple[View, ...]) -> CameraFrames:
        # Copies: an environment may draw its next frame into the same memory.
        images = tuple(observation[view.name].copy() for view in views)
        return CameraFrames(images, tuple(bool(observation[MASK][self._mask_index[view.name]]) for view in views))

    def _write_frames(self, observation: Observation, views: tuple[View, ...], frames: CameraFrames) -> None:
        for view, picture, present in zip(views, frames.images, frames.present, strict=True):
            column = self._mask_index[view.name]
            is_present = present and bool(observation[MASK][column])
            observation[MASK][column] = is_present
            observation[view.name] = picture if is_present else np.zeros_like(picture)

    def snapshot(self) -> State:
        return {
            "env": super().snapshot(),
            "faults": {
                "rng": get_rng_state(self._rng),
                "step": self._step,
                "active": list(self._active),
                "frozen": {str(number): _dump_frames(shot) for number, shot in self._frozen_frames.items()},
                "history": {
                    name: {str(place): _dump_frames(shot) for place, shot in enumerate(shots)}
                    for name, shots in self._recent_frames.items()
                },
                "last_observation": {name: part.copy() for name, part in self._last_observation.items()},
            },
        }

    def restore(self, state: State) -> Observation:
        super().restore(state["env"])
        fault_state = state["faults"]
        self._rng = restore_rng(fault_state["rng"])
        self._step, self._active = int(fault_state["step"]), list(fault_state["active"])
        self._frozen_frames = {int(number): _load_frames(shot) for number, shot in fault_state["frozen"].items()}
        for name, shots in self._recent_frames.items():
            shots.clear()
            shots.extend(
                _load_frames(fault_state["history"][name][str(place)])
                for place in range(len(fault_state["history"][name]))
            )
        self._last_observation = dict(fault_state["last_observation"])
        return self._last_observation


def _dump_frames(frames: CameraFrames) -> State:
    return {"images": {str(i): picture for i, picture in enumerate(frames.images)}, "present": list(frames.present)}


def _load_frames(state: State) -> CameraFrames:
    images = state["images"]
    return CameraFrames(tuple(images[str(place)] for place in range(len(images))), tuple(state["present"]))
