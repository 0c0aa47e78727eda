"""Observation of a robot at one tick: the newest frames with their masks, and the state vectors."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cameras import CameraFeed, CameraStatus, check_frame, compute_skew
from .clock import Clock
from .protocols import Camera, SpecLike
from .trace import Tick

POLL_INTERVAL_S = 0.005
"""Pause between two looks at the cameras before the start."""


class VectorError(RuntimeError):
    """A state vector cannot be read or is invalid."""


class Observer:
    """Reads the cameras of a robot in the background, and its state vectors when asked.

    Raises `ValueError` unless there is a camera, or None, for each view of the policy, and a function for each vector.
    """

    def __init__(
        self,
        spec: SpecLike,
        cameras: Mapping[str, Camera | None],
        vectors: Mapping[str, Callable[[], Any]],
        *,
        max_frame_age_s: float,
        max_frozen_s: float,
        clock: Clock,
    ) -> None:
        _check_names("cameras", cameras, [view.name for view in spec.views], "None for a camera the robot lacks")
        _check_names("vectors", vectors, [vector.name for vector in spec.vectors], "a function")
        _check_sources(cameras)
        self._spec, self._cameras, self._vectors, self._clock = spec, cameras, vectors, clock
        self._max_age_s, self._max_frozen_s = max_frame_age_s, max_frozen_s
        self._feeds: dict[str, CameraFeed] = {}

    @property
    def feeds(self) -> Mapping[str, CameraFeed]:
        """Cameras that are read, by view."""
        return self._feeds

    def start(self, *, interval_s: float) -> None:
        """Start reading; the reads of a camera start at least `interval_s` apart."""
        for view in self._spec.views:
            source = self._cameras[view.name]
            if source is not None:
                self._feeds[view.name] = CameraFeed(
                    view, source, resize=self._spec.resize, interval_s=interval_s, clock=self._clock
                )

    def wait_for_frames(self, timeout_s: float) -> list[str]:
        """Wait for a first frame of every camera and return those without one after `timeout_s`."""
        end_s = self._clock.now() + timeout_s
        while True:
            missing = [name for name, feed in self._feeds.items() if feed.newest is None]
            now = self._clock.now()
            if not missing or now >= end_s:
                return missing
            self._clock.sleep_until(min(end_s, now + POLL_INTERVAL_S))

    def observe(self, number: int) -> Tick:
        """Return a tick with the newest frames that are usable, and the masks of the others."""
        # Frames first: one that is captured after `time_s` would come from the future.
        newest = {name: feed.newest for name, feed in self._feeds.items()}
        now = self._clock.now()
        tick = Tick(number, now)
        for view in self._spec.views:
            if view.name not in newest:
                status = CameraStatus(None, None, "absent")
            else:
                limits = {"max_age_s": self._max_age_s, "max_frozen_s": self._max_frozen_s}
                status = check_frame(newest[view.name], now, **limits)
                error = self._feeds[view.name].error
                if error is not None:
                    tick.errors[view.name] = error
            tick.ages_s[view.name] = status.age_s
            if status.reason is not None:
                tick.masked[view.name] = status.reason
            elif status.frame is not None:
                tick.frames[view.name] = status.frame
        tick.skew_s = compute_skew(list(tick.frames.values()))
        return tick

    def read_vectors(self) -> dict[str, NDArray[np.float32]]:
        """Return the state vectors; `VectorError` names one that fails."""
        return {vector.name: _read_vector(self._vectors[vector.name], vector) for vector in self._spec.vectors}

    def make_blank(self) -> dict[str, NDArray[Any]]:
        """Return an observation of black images and zeros."""
        images = {view.name: np.zeros((view.height, view.width, view.channels), np.uint8) for view in self._spec.views}
        return {**images, **{vector.name: np.zeros(vector.size, np.float32) for vector in self._spec.vectors}}

    def describe_failures(self, names: list[str]) -> str:
        """Return the cameras with the errors of their newest reads."""
        return ", ".join(f"{name} ({self._feeds[name].error or 'no image'})" for name in names)

    def close(self, timeout_s: float) -> list[str]:
        """Stop all cameras within `timeout_s` and return those whose read has not returned."""
        for feed in self._feeds.values():
            feed.stop()
        end_s = self._clock.now() + timeout_s
        return [name for name, feed in self._feeds.items() if not feed.close(end_s - self._clock.now())]


def _read_vector(read: Callable[[], Any], vector: Any) -> NDArray[np.float32]:
    try:
        values = np.asarray(read(), np.float32)
    except Exception as error:
        raise VectorError(f"state vector {vector.name!r}: {type(error).__name__}: {error}") from error
    if values.shape != (vector.size,) or not all(map(isfinite, values.tolist())):
        raise VectorError(f"state vector {vector.name!r}: expected {vector.size} finite numbers, got {values}")
    return values.copy()


def _check_names(what: str, given: Mapping[str, Any], expected: list[str], remedy: str) -> None:
    if given.keys() != set(expected):
        raise ValueError(
            f"invalid {what}: expected {', '.join(expected) or 'none'}, as the policy, got "
            f"{', '.join(map(str, given)) or 'none'}. Give each name once, with {remedy}."
        )


def _check_sources(cameras: Mapping[str, Camera | None]) -> None:
    """Raise `ValueError` if two views share a driver, which two threads would read."""
    used: list[tuple[str, Camera]] = []
    for name, source in cameras.items():
        if source is None:
            continue
        if not callable(source) and not callable(getattr(source, "read", None)):
            raise ValueError(f"invalid camera {name!r}: expected a function or an object with `read`, got {source!r}")
        for other, other_source in used:
            if source == other_source:
                raise ValueError(f"cameras {other!r} and {name!r} share a source: expected one source for each camera")
        used.append((name, source))
