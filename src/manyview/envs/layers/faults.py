"""Cameras that fail on purpose: what a robot will meet, met in training and in tests."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import gymnasium as gym
import numpy as np

from manyview.envs.foreground import from_bits, to_bits
from manyview.envs.views import (
    MASK,
    Image,
    Observation,
    State,
    View,
    ViewWrapper,
    generator_state,
    restored_generator,
    views_of,
)

Kind = Literal["black", "frozen", "noise", "late", "gone"]
Lasts = Literal["frame", "episode", "forever"]

_STREAM = 0xFA17  # beside the seed, so that the faults draw other numbers than the environment does


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way in which one camera fails.

    It begins either with a probability in every frame, or at a step of every episode (0 is the reset). A camera that
    is `frozen` repeats the last picture it gave in this episode, the first one if there is none before; one that is
    `late` shows each picture `late_frames` steps after it was taken, and the episode's first until then.
    """

    view: str
    kind: Kind
    lasts: Lasts = "frame"
    probability: float | None = None
    at_step: int | None = None
    late_frames: int = 3
    """How old the pictures of a late camera are."""

    def __post_init__(self) -> None:
        for value, choices in ((self.kind, get_args(Kind)), (self.lasts, get_args(Lasts))):
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


class Shot(NamedTuple):
    """What a camera gave at one moment: its picture, then those of the views derived from it."""

    pictures: tuple[Image, ...]
    present: tuple[bool, ...]


class Faults(ViewWrapper):
    """Breaks cameras as declared. It works on single frames, so it stands below the frame stack.

    The faults that show are told in `info["faults"]`, as `{"side": "black"}`. A view derived from a camera fails with
    it: behind a black or noisy camera it is cut anew out of what that camera shows. Of several faults of one camera
    the one declared first shows. A camera that is absent by itself stays absent.

    `reset(seed=...)` begins anew in every respect: it seeds the faults too, and repairs those that last for ever.
    """

    def __init__(self, env: gym.Env[Observation, Any], faults: Sequence[Fault]) -> None:
        super().__init__(env)
        self.faults = tuple(faults)
        self._column = {view.name: column for column, view in enumerate(self.views)}
        self._families = {name: self._family(name) for name in dict.fromkeys(fault.view for fault in faults)}
        oldest = {
            name: [f.late_frames for f in faults if (f.view, f.kind) == (name, "late")] for name in self._families
        }
        self._earlier = {name: deque[Shot](maxlen=max([1, *frames])) for name, frames in oldest.items()}
        """The last true shots of this episode, by camera."""
        self._frozen: dict[int, Shot] = {}
        """What stands still while a fault is active, by the fault's number."""
        self._active = [False] * len(self.faults)
        self._step = 0
        self._rng = np.random.default_rng()
        self._shown: Observation = {}

    def _family(self, name: str) -> tuple[View, ...]:
        """The camera and the views that are derived from it."""
        views = {view.name: view for view in views_of(self.env)}
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
            self._rng = np.random.default_rng([_STREAM, seed])
        for number, fault in enumerate(self.faults):
            if seed is not None or fault.lasts != "forever":
                self._active[number] = False
                self._frozen.pop(number, None)
        for shots in self._earlier.values():
            shots.clear()
        self._step = 0
        return self._failing(observation, info)

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._step += 1
        observation, info = self._failing(observation, info)
        return observation, reward, terminated, truncated, info

    def _failing(self, observation: Observation, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        shots = {name: self._shot(observation, family) for name, family in self._families.items()}
        luck = self._rng.random(len(self.faults))
        showing: dict[str, int] = {}
        for number, fault in enumerate(self.faults):
            begins = self._step == fault.at_step if fault.probability is None else luck[number] < fault.probability
            self._active[number] = bool(begins) or (self._active[number] and fault.lasts != "frame")
            if not self._active[number]:
                self._frozen.pop(number, None)
                continue
            if fault.kind == "frozen" and number not in self._frozen:
                self._frozen[number] = self._before(fault.view, 1, shots[fault.view])
            showing.setdefault(fault.view, number)
        shown = {**observation, MASK: observation[MASK].copy()}
        for name, number in showing.items():
            self._put(shown, self._families[name], self._broken(number, shots[name], luck[number]))
        for name, shot in shots.items():
            self._earlier[name].append(shot)
        self._shown = shown
        kinds = {name: self.faults[number].kind for name, number in showing.items()}
        return shown, {**info, "faults": kinds} if kinds else info

    def _broken(self, number: int, shot: Shot, luck: float) -> Shot:
        fault = self.faults[number]
        match fault.kind:
            case "black":
                return self._seen_as(np.zeros_like(shot.pictures[0]), shot, fault.view)
            case "noise":
                # From a generator of its own: noise here must not shift when other faults begin.
                static = np.random.default_rng(int(luck * 2**53))
                noise = static.integers(256, size=shot.pictures[0].shape, dtype=np.uint8)
                return self._seen_as(noise, shot, fault.view)
            case "frozen":
                return self._frozen[number]
            case "late":
                return self._before(fault.view, fault.late_frames, shot)
            case "gone":
                return shot._replace(present=(False,) * len(shot.present))

    def _before(self, name: str, frames: int, now: Shot) -> Shot:
        """The shot of so many frames ago, or the episode's first."""
        shots = [*self._earlier[name], now]
        return shots[max(0, len(shots) - 1 - frames)]

    def _seen_as(self, picture: Image, shot: Shot, name: str) -> Shot:
        """`shot` had the camera shown `picture`: the derived views are cut out of that."""
        _, *derived = self._families[name]
        cut = [
            from_bits(picture, to_bits(true, view.fill), view.fill)
            for view, true in zip(derived, shot.pictures[1:], strict=True)
        ]
        return Shot((picture, *cut), shot.present)

    def _shot(self, observation: Observation, family: tuple[View, ...]) -> Shot:
        # Copies: an environment may draw its next frame into the same memory.
        pictures = tuple(observation[view.name].copy() for view in family)
        return Shot(pictures, tuple(bool(observation[MASK][self._column[view.name]]) for view in family))

    def _put(self, shown: Observation, family: tuple[View, ...], shot: Shot) -> None:
        for view, picture, present in zip(family, shot.pictures, shot.present, strict=True):
            column = self._column[view.name]
            there = present and bool(shown[MASK][column])
            shown[MASK][column] = there
            shown[view.name] = picture if there else np.zeros_like(picture)

    def snapshot(self) -> State:
        return {
            "env": super().snapshot(),
            "faults": {
                "rng": generator_state(self._rng),
                "step": self._step,
                "active": list(self._active),
                "frozen": {str(number): _shot_state(shot) for number, shot in self._frozen.items()},
                "earlier": {
                    name: {str(place): _shot_state(shot) for place, shot in enumerate(shots)}
                    for name, shots in self._earlier.items()
                },
                "shown": {name: part.copy() for name, part in self._shown.items()},
            },
        }

    def restore(self, state: State) -> Observation:
        super().restore(state["env"])
        own = state["faults"]
        self._rng = restored_generator(own["rng"])
        self._step, self._active = int(own["step"]), list(own["active"])
        self._frozen = {int(number): _shot_of(shot) for number, shot in own["frozen"].items()}
        for name, shots in self._earlier.items():
            shots.clear()
            shots.extend(_shot_of(own["earlier"][name][str(place)]) for place in range(len(own["earlier"][name])))
        self._shown = dict(own["shown"])
        return self._shown


def _shot_state(shot: Shot) -> State:
    return {"pictures": {str(i): picture for i, picture in enumerate(shot.pictures)}, "present": list(shot.present)}


def _shot_of(state: State) -> Shot:
    pictures = state["pictures"]
    return Shot(tuple(pictures[str(place)] for place in range(len(pictures))), tuple(state["present"]))
