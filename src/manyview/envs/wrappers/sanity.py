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

CHECK_INTERVAL_STEPS = 10
WARN_AFTER_STEPS = 20
"""How long a view may be of one colour, or two be the same, without a word. At the very first reset: not at all."""
FROZEN_AFTER_STEPS = 50
"""For how many steps one view may stand still while another changes. A robot may well stand still for a while."""
FLAT_TOLERANCE = 4
"""A covered camera still has noise of a few grey levels."""
SWAP_RATIO = 0.4
"""A view counts as another one if it is so much nearer to what that one showed than to anything it showed itself.

Scenes drawn anew at every reset are about as far from another view's pictures as from their own, or farther: 0.9 and
more on the DMC tasks. What is swapped there comes to 0.3 or less on nine of twelve; the others vary too much to tell.
"""
SWAP_MIN_DISTANCE = 4.0
MAX_RESET_SAMPLES = 8
SAMPLE_SIDE_PX = 16
"""About so many pixels a side are compared between resets."""


class Timestep(NamedTuple):
    frames: int
    """Since the beginning, resets included."""
    episode: int
    step: int

    def __str__(self) -> str:
        return f"step {self.step} of episode {self.episode}" if self.step else f"the reset of episode {self.episode}"


class Anomaly:
    """Something that goes on for a while, and is said once."""

    def __init__(self) -> None:
        self.since: Timestep | None = None
        self._has_warned = False

    def track(self, now: Timestep) -> int:
        """For how many steps by now."""
        self.since = self.since or now
        return now.frames - self.since.frames

    def clear(self) -> None:
        self.since, self._has_warned = None, False

    def should_warn(self) -> bool:
        """True at the first time of asking."""
        has_warned, self._has_warned = self._has_warned, True
        return not has_warned


class SanityCheck(ViewWrapper):
    """Watches single frames, so it stands below the frame stack."""

    def __init__(self, env: gym.Env[Observation, Any], *, name: str | None = None) -> None:
        super().__init__(env)
        self.name = name or str(env)
        self._cameras = [(column, view.name) for column, view in enumerate(self.views) if view.derived_from is None]
        names = [name for _, name in self._cameras]
        self._flat_views = {name: Anomaly() for name in names}
        self._duplicate_views = {pair: Anomaly() for pair in combinations(names, 2)}
        self._frozen_views = {name: Anomaly() for name in names}
        self._still_steps = dict.fromkeys(names, 0)
        """For how many steps a view has stood still in which another one changed."""
        self._suspects: set[str] = set()
        """Views that were the same at two looks."""
        self._reported_frozen_images: dict[str, bytes] = {}
        """The picture that each view was last said to be frozen at: it need not be said again in every episode."""
        self._last_images: dict[str, bytes] = {}
        self._reset_samples = {name: deque[NDArray[np.int16]](maxlen=MAX_RESET_SAMPLES) for name in names}
        """What each view showed at the last resets, in few pixels."""
        self._time = self._last_check = Timestep(-1, 0, 0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._time = Timestep(self._time.frames + 1, self._time.episode + 1, 0)
        self._last_images = {}
        self._suspects.clear()
        for name, anomaly in self._frozen_views.items():
            anomaly.clear()
            self._still_steps[name] = 0
        images = self._select_present(observation)
        self._detect_anomalies(images)
        self._detect_swaps(images)
        return observation, info

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        frames, episode, step = self._time
        self._time = Timestep(frames + 1, episode, step + 1)
        if (step + 1) % CHECK_INTERVAL_STEPS == 0:
            self._detect_anomalies(self._select_present(observation))
        elif self._suspects:
            self._clear_moving_suspects(self._select_present(observation))
        return observation, reward, terminated, truncated, info

    def _select_present(self, observation: Observation) -> dict[str, Image]:
        mask = observation[MASK].tolist()
        return {name: observation[name] for column, name in self._cameras if mask[column]}

    def _detect_anomalies(self, images: dict[str, Image]) -> None:
        image_bytes = {name: image.tobytes() for name, image in images.items()}
        flat = {name for name, image in images.items() if is_flat(image)}
        self._detect_flat(images, flat)
        self._detect_duplicates(images, image_bytes, flat)
        self._detect_frozen(image_bytes, flat)
        self._last_images, self._last_check = image_bytes, self._time

    def _detect_flat(self, images: dict[str, Image], flat: set[str]) -> None:
        for name, anomaly in self._flat_views.items():
            if name not in flat:
                anomaly.clear()
            elif anomaly.track(self._time) >= self._warn_after_steps and anomaly.should_warn():
                colour = tuple(images[name][0, 0].tolist())
                what = "is black" if max(colour) <= FLAT_TOLERANCE else f"shows nothing but the colour {colour}"
                self._warn(
                    f"view {name!r} {what}", anomaly.since, "look at its cap, cable and light, or leave the view out"
                )

    def _detect_duplicates(self, images: dict[str, Image], image_bytes: dict[str, bytes], flat: set[str]) -> None:
        for (first, second), anomaly in self._duplicate_views.items():
            same = (
                first in image_bytes
                and first not in flat
                and image_bytes[first] == image_bytes.get(second)
                and images[first].shape == images[second].shape
            )
            if not same:
                anomaly.clear()
            elif anomaly.track(self._time) >= self._warn_after_steps and anomaly.should_warn():
                what = f"views {first!r} and {second!r} show the same image"
                self._warn(
                    what, anomaly.since, "probably one camera is read under both names: check which camera each one is"
                )

    def _detect_frozen(self, image_bytes: dict[str, bytes], flat: set[str]) -> None:
        moving = {name for name, picture in image_bytes.items() if picture != self._last_images.get(name, picture)}
        for name, anomaly in self._frozen_views.items():
            if name in moving or name in flat or name not in image_bytes or name not in self._last_images:
                anomaly.clear()
                self._still_steps[name] = 0
                self._suspects.discard(name)
                continue
            anomaly.track(self._last_check)
            self._suspects.add(name)
            # While everything stands still nothing can be told.
            self._still_steps[name] += CHECK_INTERVAL_STEPS if moving else 0
            if self._still_steps[name] >= FROZEN_AFTER_STEPS and image_bytes[name] != self._reported_frozen_images.get(
                name
            ):
                self._reported_frozen_images[name] = image_bytes[name]
                others = " and ".join(repr(other) for other in self._frozen_views if other in moving)
                self._warn(
                    f"view {name!r} has not changed at all while {others} did",
                    anomaly.since,
                    "its camera or driver hangs if it should see that movement: restart it, or leave the view out",
                )

    def _clear_moving_suspects(self, images: dict[str, Image]) -> None:
        """Between two looks: a view that moves and comes back is not frozen. Only suspects are watched that closely."""
        for name in [
            name for name in self._suspects if name not in images or images[name].tobytes() != self._last_images[name]
        ]:
            self._frozen_views[name].clear()
            self._still_steps[name] = 0
            self._suspects.discard(name)

    def _detect_swaps(self, images: dict[str, Image]) -> None:
        samples = {name: subsample(image) for name, image in images.items()}
        looks_like = {name: self._find_lookalike(name, sample) for name, sample in samples.items()}
        # Whoever looks like a view that itself looks like another one: pairs, and longer rounds.
        swapped = [
            name for name, other in looks_like.items() if other is not None and looks_like.get(other) is not None
        ]
        for name, sample in samples.items():
            self._reset_samples[name].append(sample)
        if swapped:
            pairs = ", ".join(f"{name!r} like {looks_like[name]!r}" for name in swapped)
            self._warn(
                f"views look swapped: {pairs} at earlier resets",
                self._time,
                "find each camera by its name or serial number, not by the order in which it was plugged in",
            )

    def _find_lookalike(self, name: str, sample: NDArray[np.int16]) -> str | None:
        """The other view whose earlier resets this one resembles far more than its own, if there is one."""
        own_distance = compute_min_distance(sample, self._reset_samples[name])
        if own_distance < SWAP_MIN_DISTANCE or own_distance == np.inf:
            return None
        distances = {
            other: compute_min_distance(sample, resets)
            for other, resets in self._reset_samples.items()
            if other != name
        }
        if not distances:
            return None
        closest = min(distances, key=distances.__getitem__)
        return closest if distances[closest] < SWAP_RATIO * own_distance else None

    @property
    def _warn_after_steps(self) -> int:
        return 0 if self._time.frames == 0 else WARN_AFTER_STEPS

    def _warn(self, message: str, since: Timestep | None, remedy: str) -> None:
        warnings.warn(f"{self.name}: {message}, since {since}: {remedy}", ViewWarning, stacklevel=2)


def is_flat(image: Image) -> bool:
    """Whether an image [H, W, C] is of one colour, up to noise. Few pixels of one channel decide unless they agree."""
    subset = image[::4, ::4, 0]
    if int(subset.max()) - int(subset.min()) > FLAT_TOLERANCE:
        return False
    lowest, highest = image.min((0, 1)), image.max((0, 1))
    return int((highest - lowest).max()) <= FLAT_TOLERANCE


def subsample(image: Image) -> NDArray[np.int16]:
    """Some pixels of an image, spread over it."""
    height, width, _ = image.shape
    return image[:: max(1, height // SAMPLE_SIDE_PX), :: max(1, width // SAMPLE_SIDE_PX)].astype(np.int16)


def compute_min_distance(sample: NDArray[np.int16], others: "deque[NDArray[np.int16]]") -> float:
    """The mean difference in grey levels to the most similar of the others; infinite if there is none to compare."""
    return min(
        (float(np.abs(sample - other).mean()) for other in others if other.shape == sample.shape), default=np.inf
    )
