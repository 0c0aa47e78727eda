"""Fault injection: cameras and state vectors that fail on purpose, for robust training and for tests."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from manyview.envs.contract import validate_observation
from manyview.envs.foreground import extract_foreground_mask, remove_background
from manyview.envs.views import MASK, Image, Observation, State, View, ViewWrapper, get_dict_space, get_views
from manyview.utils.seeding import get_rng_state, restore_rng

FaultKind = Literal["black", "frozen", "noise", "late", "gone"]
"""Faults of a camera."""
VectorFaultKind = Literal["frozen", "late", "nan"]
"""Faults of a state vector."""
FaultDuration = Literal["frame", "episode", "forever"]

_SEED_STREAM = 0xFA17  # with the seed; gives the faults other random numbers than the environment


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A failure mode of one camera, or of one state vector, which `view` names too.

    It starts with `probability` at every reset and step, or at agent step `at_step` of every episode (0 is the reset).
    A `frozen` camera repeats its last image of this episode, or the first image if there is none before. A `late`
    camera shows each image `late_frames` agent steps after it was taken, and the first of the episode until then.
    A state vector can be `frozen` (stuck), `late`, or `nan`: a sensor that returns no number, which the checks of
    manyview refuse with a `ContractError`, since a vector has no mask.
    """

    view: str
    kind: FaultKind | VectorFaultKind
    lasts: FaultDuration = "frame"
    probability: float | None = None
    at_step: int | None = None
    late_frames: int = 3
    """Delay of a `late` camera in agent steps."""

    def __post_init__(self) -> None:
        kinds = dict.fromkeys((*get_args(FaultKind), *get_args(VectorFaultKind)))
        for value, choices in ((self.kind, kinds), (self.lasts, get_args(FaultDuration))):
            if value not in choices:
                raise ValueError(
                    f"invalid fault of view {self.view!r}: expected one of {', '.join(choices)}, got {value!r}"
                )
        if (self.probability is None) == (self.at_step is None):
            raise ValueError(
                f"invalid fault of view {self.view!r}: expected either probability or at_step, got probability "
                f"{self.probability} and at_step {self.at_step}"
            )
        if self.probability is not None and not 0 <= self.probability <= 1:
            raise ValueError(
                f"invalid fault of view {self.view!r}: expected a probability from 0 to 1, got {self.probability}"
            )
        if self.at_step is not None and self.at_step < 0:
            raise ValueError(f"invalid fault of view {self.view!r}: expected at_step >= 0, got {self.at_step}")
        if self.late_frames < 1:
            raise ValueError(f"invalid fault of view {self.view!r}: expected late_frames >= 1, got {self.late_frames}")


class CameraFrames(NamedTuple):
    """Images of a camera, which is first, and of the views derived from it; or a state vector alone."""

    images: tuple[NDArray[Any], ...]
    present: tuple[bool, ...]


class FaultInjector(ViewWrapper):
    """Injects the declared faults into single frames, below the frame stack.

    `info["faults"]` reports the visible faults, as `{"side": "black"}`. A view derived from a camera fails with it: for
    a black or noisy camera it is recomputed from the faulty image. If several faults of a camera are active, the one
    declared first is visible. A camera that is absent without a fault stays absent.

    `reset(seed=...)` also seeds the faults and ends those that last forever.
    """

    def __init__(self, env: gym.Env[Observation, Any], faults: Sequence[Fault]) -> None:
        super().__init__(env)
        self.faults = tuple(faults)
        self._vector_names = [vector.name for vector in self.state_vectors]
        self._mask_index = {view.name: column for column, view in enumerate(self.views)}
        self._camera_views = {
            name: self._list_camera_views(name) for name in dict.fromkeys(fault.view for fault in faults)
        }
        oldest = {
            name: [f.late_frames for f in faults if (f.view, f.kind) == (name, "late")] for name in self._camera_views
        }
        self._recent_frames = {name: deque[CameraFrames](maxlen=max([1, *frames])) for name, frames in oldest.items()}
        """Last fault-free frames of this episode, by camera."""
        self._frozen_frames: dict[int, CameraFrames] = {}
        """Frames that active `frozen` faults repeat, by fault index."""
        self._active = [False] * len(self.faults)
        self._step = 0
        self._rng = np.random.default_rng()
        self._last_observation: Observation = {}

    def _list_camera_views(self, name: str) -> tuple[View, ...]:
        """Return the camera and the views that are derived from it; none for a state vector."""
        views = {view.name: view for view in get_views(self.env)}
        kinds = {str(fault.kind) for fault in self.faults if fault.view == name}
        if name in self._vector_names:
            self._check_kinds(f"state vector {name!r}", kinds, get_args(VectorFaultKind))
            return ()
        if name not in views:
            known = [*views, *self._vector_names]
            raise ValueError(f"unknown view in a fault of {self.env}: expected one of {known}, got {name!r}")
        self._check_kinds(f"camera {name!r}", kinds, get_args(FaultKind))
        if (camera := views[name].derived_from) is not None:
            raise ValueError(
                f"invalid fault: expected a camera, got {name!r}, which is derived from {camera!r}. Declare the fault "
                f"for {camera!r}; both views then fail."
            )
        return (views[name], *(view for view in self.views if view.derived_from == name))

    @staticmethod
    def _check_kinds(what: str, kinds: Collection[str], expected: Sequence[str]) -> None:
        if wrong := set(kinds).difference(expected):
            raise ValueError(f"invalid fault of {what}: expected one of {', '.join(expected)}, got {', '.join(wrong)}")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            self._rng = np.random.default_rng([_SEED_STREAM, seed])
        for index, fault in enumerate(self.faults):
            if seed is not None or fault.lasts != "forever":
                self._active[index] = False
                self._frozen_frames.pop(index, None)
        for history in self._recent_frames.values():
            history.clear()
        self._step = 0
        return self._inject(observation, info)

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._step += 1
        observation, info = self._inject(observation, info)
        return observation, reward, terminated, truncated, info

    def _inject(self, observation: Observation, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        camera_frames = {name: self._read_frames(observation, name) for name in self._camera_views}
        uniforms = self._rng.random(len(self.faults))
        active_faults: dict[str, int] = {}
        for index, fault in enumerate(self.faults):
            starts = self._step == fault.at_step if fault.probability is None else uniforms[index] < fault.probability
            self._active[index] = bool(starts) or (self._active[index] and fault.lasts != "frame")
            if not self._active[index]:
                self._frozen_frames.pop(index, None)
                continue
            if fault.kind == "frozen" and index not in self._frozen_frames:
                self._frozen_frames[index] = self._get_earlier(fault.view, 1, camera_frames[fault.view])
            active_faults.setdefault(fault.view, index)
        injected = {**observation, MASK: observation[MASK].copy()}
        for name, index in active_faults.items():
            self._write_frames(injected, name, self._apply_fault(index, camera_frames[name], uniforms[index]))
        for name, frames in camera_frames.items():
            self._recent_frames[name].append(frames)
        self._last_observation = injected
        kinds = {name: self.faults[index].kind for name, index in active_faults.items()}
        if "nan" in kinds.values():  # refused here, as if the environment had returned it
            validate_observation(injected, get_dict_space(self.env), str(self.env))
        return injected, {**info, "faults": kinds} if kinds else info

    def _apply_fault(self, index: int, frames: CameraFrames, uniform: float) -> CameraFrames:
        fault = self.faults[index]
        match fault.kind:
            case "black":
                return self._replace_image(np.zeros_like(frames.images[0]), frames, fault.view)
            case "noise":
                # A separate generator: this noise must not depend on when other faults start.
                noise_rng = np.random.default_rng(int(uniform * 2**53))
                noise = noise_rng.integers(256, size=frames.images[0].shape, dtype=np.uint8)
                return self._replace_image(noise, frames, fault.view)
            case "frozen":
                return self._frozen_frames[index]
            case "late":
                return self._get_earlier(fault.view, fault.late_frames, frames)
            case "gone":
                return frames._replace(present=(False,) * len(frames.present))
            case "nan":
                return frames._replace(images=(np.full_like(frames.images[0], np.nan),))

    def _get_earlier(self, name: str, delay: int, current: CameraFrames) -> CameraFrames:
        """Return the frames of `delay` steps ago, or the first of the episode."""
        history = [*self._recent_frames[name], current]
        return history[max(0, len(history) - 1 - delay)]

    def _replace_image(self, image: Image, frames: CameraFrames, name: str) -> CameraFrames:
        """Return `frames` with the camera's image replaced and derived views recomputed."""
        _, *derived = self._camera_views[name]
        derived_images = [
            remove_background(image, extract_foreground_mask(original, view.fill), view.fill)
            for view, original in zip(derived, frames.images[1:], strict=True)
        ]
        return CameraFrames((image, *derived_images), frames.present)

    def _read_frames(self, observation: Observation, name: str) -> CameraFrames:
        # Copies: an environment may write its next frame into the same memory.
        views = self._camera_views[name]
        if not views:
            return CameraFrames((observation[name].copy(),), (True,))
        images = tuple(observation[view.name].copy() for view in views)
        return CameraFrames(images, tuple(bool(observation[MASK][self._mask_index[view.name]]) for view in views))

    def _write_frames(self, observation: Observation, name: str, frames: CameraFrames) -> None:
        views = self._camera_views[name]
        if not views:
            observation[name] = frames.images[0].copy()
            return
        for view, image, present in zip(views, frames.images, frames.present, strict=True):
            column = self._mask_index[view.name]
            is_present = present and bool(observation[MASK][column])
            observation[MASK][column] = is_present
            observation[view.name] = image if is_present else np.zeros_like(image)

    def snapshot(self) -> State:
        return {
            "env": super().snapshot(),
            "faults": {
                "rng": get_rng_state(self._rng),
                "step": self._step,
                "active": list(self._active),
                "frozen": {str(index): _dump_frames(frames) for index, frames in self._frozen_frames.items()},
                "history": {
                    name: {str(index): _dump_frames(frames) for index, frames in enumerate(history)}
                    for name, history in self._recent_frames.items()
                },
                "last_observation": {name: part.copy() for name, part in self._last_observation.items()},
            },
        }

    def restore(self, state: State) -> Observation:
        super().restore(state["env"])
        fault_state = state["faults"]
        self._rng = restore_rng(fault_state["rng"])
        self._step, self._active = int(fault_state["step"]), list(fault_state["active"])
        self._frozen_frames = {int(index): _load_frames(frames) for index, frames in fault_state["frozen"].items()}
        for name, history in self._recent_frames.items():
            saved = fault_state["history"][name]
            history.clear()
            history.extend(_load_frames(saved[str(index)]) for index in range(len(saved)))
        self._last_observation = dict(fault_state["last_observation"])
        return self._last_observation


def _dump_frames(frames: CameraFrames) -> State:
    return {"images": {str(i): image for i, image in enumerate(frames.images)}, "present": list(frames.present)}


def _load_frames(state: State) -> CameraFrames:
    images = state["images"]
    return CameraFrames(tuple(images[str(index)] for index in range(len(images))), tuple(state["present"]))
