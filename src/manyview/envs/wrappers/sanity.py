"""Warnings about cameras that look wrong: black, frozen, duplicated or swapped.

The wrapper changes nothing and costs a few microseconds per step. It emits one `ViewWarning` each time a problem
starts; `warnings.simplefilter("ignore", manyview.envs.ViewWarning)` silences it. Derived views are not checked: they
may be empty while no object is visible, and their faults are those of their camera.
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
"""Agent steps between two checks."""
WARN_AFTER_STEPS = 20
"""Agent steps for which a view may have one color, or two views may be equal, before a warning.

At the very first reset the warning is immediate.
"""
FROZEN_AFTER_STEPS = 50
"""Agent steps for which a view may be constant while another moves. A robot may stand still for a while."""
NOISE_LEVELS = 4
"""Gray levels of noise, in the image of a covered camera and between two images of a still scene."""
SWAP_RATIO = 0.4
"""Maximum ratio of the distance to another view's earlier resets to the distance to the view's own, for a swap.

With scenes that vary at every reset the ratio is about 1 or more: at least 0.9 on the DMC tasks. With swapped views it
is at most 0.3 on nine of the twelve; the other three vary too much for a detection.
"""
SWAP_MIN_DISTANCE = 4.0
"""Mean gray levels from a view's own earlier resets below which it cannot be swapped."""
MAX_RESET_SAMPLES = 8
"""Number of resets to compare with."""
SAMPLE_SIDE_PX = 16
"""Approximate side in pixels of the subsampled images that are compared between resets."""


class Timestep(NamedTuple):
    """Position of an observation: total count, episode and step in the episode."""

    frames: int
    """Observations since the environment was made, including resets."""
    episode: int
    step: int

    def __str__(self) -> str:
        return f"step {self.step} of episode {self.episode}" if self.step else f"the reset of episode {self.episode}"


class Anomaly:
    """A condition that lasts for some steps and is reported once."""

    def __init__(self) -> None:
        self.since: Timestep | None = None
        self._has_warned = False

    def track(self, now: Timestep) -> int:
        """Record that the condition holds and return its duration in steps."""
        self.since = self.since or now
        return now.frames - self.since.frames

    def clear(self) -> None:
        """Record that the condition does not hold."""
        self.since, self._has_warned = None, False

    def should_warn(self) -> bool:
        """Return True at the first call since `clear`."""
        has_warned, self._has_warned = self._has_warned, True
        return not has_warned


class SanityCheck(ViewWrapper):
    """Warns about suspicious cameras; checks single frames, below the frame stack."""

    def __init__(self, env: gym.Env[Observation, Any], *, name: str | None = None) -> None:
        super().__init__(env)
        self.name = name or str(env)
        self._cameras = [(column, view.name) for column, view in enumerate(self.views) if view.derived_from is None]
        names = [name for _, name in self._cameras]
        self._flat_views = {name: Anomaly() for name in names}
        self._duplicate_views = {pair: Anomaly() for pair in combinations(names, 2)}
        self._frozen_views = {name: Anomaly() for name in names}
        self._still_steps = dict.fromkeys(names, 0)
        """Steps for which a view has been constant while another one moved."""
        self._suspects: set[str] = set()
        """Views that were equal at two consecutive checks."""
        self._reported_frozen_images: dict[str, bytes] = {}
        """Image at which each view was last reported as frozen, so that it is not reported in every episode."""
        self._last_images: dict[str, bytes] = {}
        self._reset_samples = {name: deque[NDArray[np.int16]](maxlen=MAX_RESET_SAMPLES) for name in names}
        """Subsampled images of each view at the last resets."""
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
                color = tuple(images[name][0, 0].tolist())
                symptom = "is black" if max(color) <= NOISE_LEVELS else f"shows only the color {color}"
                remedy = "Check the lens cap, cable and light, or remove the view."
                self._warn(f"view {name!r} {symptom}", anomaly.since, remedy)

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
                symptom = f"views {first!r} and {second!r} show the same image"
                remedy = "Probably one camera is read under both names. Check the camera of each view."
                self._warn(symptom, anomaly.since, remedy)

    def _detect_frozen(self, image_bytes: dict[str, bytes], flat: set[str]) -> None:
        changed = {name for name, image in image_bytes.items() if image != self._last_images.get(name, image)}
        # Only compared by pixel if another view has not changed.
        moving = {
            name
            for name in changed
            if changed != image_bytes.keys() and not is_noise(image_bytes[name], self._last_images[name])
        }
        for name, anomaly in self._frozen_views.items():
            if name in changed or name in flat or name not in image_bytes or name not in self._last_images:
                anomaly.clear()
                self._still_steps[name] = 0
                self._suspects.discard(name)
                continue
            anomaly.track(self._last_check)
            self._suspects.add(name)
            # If no view moves, a frozen camera cannot be distinguished from a static scene.
            self._still_steps[name] += CHECK_INTERVAL_STEPS if moving else 0
            if self._still_steps[name] >= FROZEN_AFTER_STEPS and image_bytes[name] != self._reported_frozen_images.get(
                name
            ):
                self._reported_frozen_images[name] = image_bytes[name]
                others = " and ".join(repr(other) for other in self._frozen_views if other in moving)
                self._warn(
                    f"view {name!r} has not changed while {others} did",
                    anomaly.since,
                    "If it should show that motion, its camera or driver hangs: restart it, or remove the view.",
                )

    def _clear_moving_suspects(self, images: dict[str, Image]) -> None:
        """Clear suspects that changed between two checks.

        Only suspects are compared at every step.
        """
        for name in [
            name for name in self._suspects if name not in images or images[name].tobytes() != self._last_images[name]
        ]:
            self._frozen_views[name].clear()
            self._still_steps[name] = 0
            self._suspects.discard(name)

    def _detect_swaps(self, images: dict[str, Image]) -> None:
        samples = {name: subsample(image) for name, image in images.items()}
        looks_like = {name: self._find_lookalike(name, sample) for name, sample in samples.items()}
        # A view that resembles a view that itself resembles another one: pairs and longer cycles.
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
                "Identify each camera by its name or serial number, not by the order in which it was plugged in.",
            )

    def _find_lookalike(self, name: str, sample: NDArray[np.int16]) -> str | None:
        """Return the other view whose earlier resets `sample` resembles, or None.

        It must resemble them far more than the earlier resets of the same view.
        """
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
        warnings.warn(f"{self.name}: {message}, since {since}. {remedy}", ViewWarning, stacklevel=2)


def is_flat(image: Image) -> bool:
    """Return whether an image [H, W, C] has one color, up to noise."""
    subset = image[::4, ::4, 0]  # few pixels of one channel suffice for most images
    if int(subset.max()) - int(subset.min()) > NOISE_LEVELS:
        return False
    lowest, highest = image.min((0, 1)), image.max((0, 1))
    return int((highest - lowest).max()) <= NOISE_LEVELS


def is_noise(image: bytes, other: bytes) -> bool:
    """Return whether two images of one shape differ by no more than noise."""
    levels, other_levels = (np.frombuffer(part, np.uint8).astype(np.int16) for part in (image, other))
    return int(np.abs(levels - other_levels).max()) <= NOISE_LEVELS


def subsample(image: Image) -> NDArray[np.int16]:
    """Return about `SAMPLE_SIDE_PX` pixels per side of an image [H, W, C], evenly spaced."""
    height, width, _ = image.shape
    return image[:: max(1, height // SAMPLE_SIDE_PX), :: max(1, width // SAMPLE_SIDE_PX)].astype(np.int16)


def compute_min_distance(sample: NDArray[np.int16], others: "deque[NDArray[np.int16]]") -> float:
    """Return the smallest mean absolute difference to `others`, in gray levels.

    Samples of another shape are skipped; infinity if none is left.
    """
    return min(
        (float(np.abs(sample - other).mean()) for other in others if other.shape == sample.shape), default=np.inf
    )
