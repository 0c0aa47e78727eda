"""Says aloud when the views look wrong: black, frozen, doubled, or swapped.

It changes nothing and costs a few microseconds a step. What it says is a `ViewWarning`, once for each time it begins;
`warnings.simplefilter("ignore", manyview.envs.ViewWarning)` makes it silent. Views that are derived from a camera are
left out: they are rightly empty while nothing is in sight, and what is wrong with them is wrong with their camera.
"""

import warnings
from collections import deque
from itertools import combinations
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from manyview.envs.views import MASK, Image, Observation, ViewWarning, ViewWrapper

LOOK_EVERY_STEPS = 10
PATIENCE_STEPS = 20
"""How long a view may be of one colour, or two be the same, without a word. At the very first reset: not at all."""
FROZEN_STEPS = 50
"""For how many steps one view may stand still while another changes. A robot may well stand still for a while."""
FLAT_LEVELS = 4
"""A covered camera still has noise of a few grey levels."""
SWAP_RATIO = 0.4
"""A view counts as another one if it is so much nearer to what that one showed than to anything it showed itself.

Scenes drawn anew at every reset are about as far from another view's pictures as from their own, or farther: 0.9 and
more on the DMC tasks. What is swapped there comes to 0.3 or less on nine of twelve; the others vary too much to tell.
"""
SWAP_LEVELS = 4.0
RESETS_KEPT = 8
SAMPLES = 16
"""About so many pixels a side are compared between resets."""


class Moment(NamedTuple):
    frames: int
    """Since the beginning, resets included."""
    episode: int
    step: int

    def __str__(self) -> str:
        return f"step {self.step} of episode {self.episode}" if self.step else f"the reset of episode {self.episode}"


class Spell:
    """Something that goes on for a while, and is said once."""

    def __init__(self) -> None:
        self.since: Moment | None = None
        self._said = False

    def goes_on(self, now: Moment) -> int:
        """For how many steps by now."""
        self.since = self.since or now
        return now.frames - self.since.frames

    def end(self) -> None:
        self.since, self._said = None, False

    def unsaid(self) -> bool:
        """True at the first time of asking."""
        said, self._said = self._said, True
        return not said


class Sanity(ViewWrapper):
    """Watches single frames, so it stands below the frame stack."""

    def __init__(self, env: gym.Env[Observation, Any], *, name: str | None = None) -> None:
        super().__init__(env)
        self.name = name or str(env)
        self._cameras = [(column, view.name) for column, view in enumerate(self.views) if view.derived_from is None]
        names = [name for _, name in self._cameras]
        self._flat = {name: Spell() for name in names}
        self._same = {pair: Spell() for pair in combinations(names, 2)}
        self._frozen = {name: Spell() for name in names}
        self._still_steps = dict.fromkeys(names, 0)
        """For how many steps a view has stood still in which another one changed."""
        self._suspects: set[str] = set()
        """Views that were the same at two looks."""
        self._known_frozen: dict[str, bytes] = {}
        """The picture that each view was last said to be frozen at: it need not be said again in every episode."""
        self._last: dict[str, bytes] = {}
        self._resets = {name: deque[NDArray[np.int16]](maxlen=RESETS_KEPT) for name in names}
        """What each view showed at the last resets, in few pixels."""
        self._now = self._looked = Moment(-1, 0, 0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._now = Moment(self._now.frames + 1, self._now.episode + 1, 0)
        self._last = {}
        self._suspects.clear()
        for name, spell in self._frozen.items():
            spell.end()
            self._still_steps[name] = 0
        images = self._present(observation)
        self._look(images)
        self._look_for_swaps(images)
        return observation, info

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        frames, episode, step = self._now
        self._now = Moment(frames + 1, episode, step + 1)
        if (step + 1) % LOOK_EVERY_STEPS == 0:
            self._look(self._present(observation))
        elif self._suspects:
            self._acquit(self._present(observation))
        return observation, reward, terminated, truncated, info

    def _present(self, observation: Observation) -> dict[str, Image]:
        mask = observation[MASK].tolist()
        return {name: observation[name] for column, name in self._cameras if mask[column]}

    def _look(self, images: dict[str, Image]) -> None:
        pictures = {name: image.tobytes() for name, image in images.items()}
        flat = {name for name, image in images.items() if is_flat(image)}
        self._look_for_flat(images, flat)
        self._look_for_doubles(images, pictures, flat)
        self._look_for_frozen(pictures, flat)
        self._last, self._looked = pictures, self._now

    def _look_for_flat(self, images: dict[str, Image], flat: set[str]) -> None:
        for name, spell in self._flat.items():
            if name not in flat:
                spell.end()
            elif spell.goes_on(self._now) >= self._patience_steps and spell.unsaid():
                colour = tuple(images[name][0, 0].tolist())
                what = "is black" if max(colour) <= FLAT_LEVELS else f"shows nothing but the colour {colour}"
                self._say(
                    f"view {name!r} {what}", spell.since, "look at its cap, cable and light, or leave the view out"
                )

    def _look_for_doubles(self, images: dict[str, Image], pictures: dict[str, bytes], flat: set[str]) -> None:
        for (one, other), spell in self._same.items():
            same = (
                one in pictures
                and one not in flat
                and pictures[one] == pictures.get(other)
                and images[one].shape == images[other].shape
            )
            if not same:
                spell.end()
            elif spell.goes_on(self._now) >= self._patience_steps and spell.unsaid():
                what = f"views {one!r} and {other!r} show the same image"
                self._say(
                    what, spell.since, "probably one camera is read under both names: check which camera each one is"
                )

    def _look_for_frozen(self, pictures: dict[str, bytes], flat: set[str]) -> None:
        moving = {name for name, picture in pictures.items() if picture != self._last.get(name, picture)}
        for name, spell in self._frozen.items():
            if name in moving or name in flat or name not in pictures or name not in self._last:
                spell.end()
                self._still_steps[name] = 0
                self._suspects.discard(name)
                continue
            spell.goes_on(self._looked)
            self._suspects.add(name)
            # While everything stands still nothing can be told.
            self._still_steps[name] += LOOK_EVERY_STEPS if moving else 0
            if self._still_steps[name] >= FROZEN_STEPS and pictures[name] != self._known_frozen.get(name):
                self._known_frozen[name] = pictures[name]
                others = " and ".join(repr(other) for other in self._frozen if other in moving)
                self._say(
                    f"view {name!r} has not changed at all while {others} did",
                    spell.since,
                    "its camera or driver hangs if it should see that movement: restart it, or leave the view out",
                )

    def _acquit(self, images: dict[str, Image]) -> None:
        """Between two looks: a view that moves and comes back is not frozen. Only suspects are watched that closely."""
        for name in [
            name for name in self._suspects if name not in images or images[name].tobytes() != self._last[name]
        ]:
            self._frozen[name].end()
            self._still_steps[name] = 0
            self._suspects.discard(name)

    def _look_for_swaps(self, images: dict[str, Image]) -> None:
        samples = {name: sampled(image) for name, image in images.items()}
        looks_like = {name: self._looks_like(name, sample) for name, sample in samples.items()}
        # Whoever looks like a view that itself looks like another one: pairs, and longer rounds.
        swapped = [
            name for name, other in looks_like.items() if other is not None and looks_like.get(other) is not None
        ]
        for name, sample in samples.items():
            self._resets[name].append(sample)
        if swapped:
            pairs = ", ".join(f"{name!r} like {looks_like[name]!r}" for name in swapped)
            self._say(
                f"views look swapped: {pairs} at earlier resets",
                self._now,
                "find each camera by its name or serial number, not by the order in which it was plugged in",
            )

    def _looks_like(self, name: str, sample: NDArray[np.int16]) -> str | None:
        """The other view whose earlier resets this one resembles far more than its own, if there is one."""
        own = nearest(sample, self._resets[name])
        if own < SWAP_LEVELS or own == np.inf:
            return None
        others = {other: nearest(sample, resets) for other, resets in self._resets.items() if other != name}
        if not others:
            return None
        closest = min(others, key=others.__getitem__)
        return closest if others[closest] < SWAP_RATIO * own else None

    @property
    def _patience_steps(self) -> int:
        return 0 if self._now.frames == 0 else PATIENCE_STEPS

    def _say(self, what: str, since: Moment | None, remedy: str) -> None:
        warnings.warn(f"{self.name}: {what}, since {since}: {remedy}", ViewWarning, stacklevel=2)


def is_flat(image: Image) -> bool:
    """Whether an image [H, W, C] is of one colour, up to noise. Few pixels of one channel decide unless they agree."""
    some = image[::4, ::4, 0]
    if int(some.max()) - int(some.min()) > FLAT_LEVELS:
        return False
    lowest, highest = image.min((0, 1)), image.max((0, 1))
    return int((highest - lowest).max()) <= FLAT_LEVELS


def sampled(image: Image) -> NDArray[np.int16]:
    """Some pixels of an image, spread over it."""
    height, width, _ = image.shape
    return image[:: max(1, height // SAMPLES), :: max(1, width // SAMPLES)].astype(np.int16)


def nearest(sample: NDArray[np.int16], others: "deque[NDArray[np.int16]]") -> float:
    """The mean difference in grey levels to the most similar of the others; infinite if there is none to compare."""
    return min(
        (float(np.abs(sample - other).mean()) for other in others if other.shape == sample.shape), default=np.inf
    )
