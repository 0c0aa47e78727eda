"""Cameras of a robot: each is read in its own thread, which also resizes the images.

The runner takes the newest frame of each camera and never waits for one. A frame is usable while it is young enough
and its bytes still change; `CameraFeed.check` gives the reason if it is not.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .clock import Clock
from .latest_frame import LatestFrame
from .protocols import Camera, CapturedFrame, ResizeLike, ViewLike

MaskReason = Literal["absent", "missing", "stale", "frozen"]
"""`absent`: no such camera. `missing`: no image yet. `stale`: too old. `frozen`: the same bytes for too long."""


@dataclass(frozen=True)
class Frame:
    """An image as the policy sees it, with its times."""

    image: NDArray[np.uint8]
    """Read-only, of the view's shape [H, W, C]."""
    captured_s: float
    """Time at which its read started, or the camera's own time of capture."""
    changed_s: float
    """Time of capture of the first frame with these bytes."""
    number: int
    """Number of different frames of this camera before it."""
    checksum: int
    """CRC-32 of `image`."""


class CameraStatus(NamedTuple):
    """A camera at one tick."""

    frame: Frame | None
    age_s: float | None
    """Time since the capture of the newest frame; None before the first."""
    reason: MaskReason | None
    """Reason to mask the view; None if its frame is usable."""


class CameraFeed:
    """Newest frame of one camera.

    A read that raises, returns None or returns a wrong image keeps the earlier frame, which then gets too old. The time
    of capture is the start of the read: no frame of an unbuffered driver is older. A driver that
    buffers must return a `CapturedFrame` with the time of capture.
    """

    def __init__(
        self, view: ViewLike, source: Camera, *, resize: ResizeLike | None, interval_s: float, clock: Clock
    ) -> None:
        self.name = view.name
        self.num_failures = 0
        self._view, self._resize, self._clock = view, resize, clock
        self._read: Callable[[], Any] = source if callable(source) else source.read
        self._raw_checksum: tuple[tuple[int, ...], int] | None = None
        self._previous: Frame | None = None
        self._latest = LatestFrame(
            self._capture,
            name=f"camera-{view.name}",
            interval_s=interval_s,
            retry_interval_s=interval_s,
            release=getattr(source, "close", None),
            clock=clock,
        )

    @property
    def newest(self) -> Frame | None:
        """Newest frame; None before the first."""
        return self._latest.newest

    @property
    def error(self) -> str | None:
        """Error of the newest read; None if it did not fail."""
        error = self._latest.error
        return None if error is None else f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """Stop reading; returns immediately."""
        self._latest.stop()

    def close(self, timeout_s: float) -> bool:
        """Stop, wait for a running read and return whether it ended within `timeout_s`."""
        return self._latest.close(timeout_s)

    def _capture(self) -> Frame:
        try:
            return self._capture_frame()
        except BaseException:
            self.num_failures += 1
            raise

    def _capture_frame(self) -> Frame:
        start_s = self._clock.now()
        result = self._read()
        image, captured_s = result if isinstance(result, CapturedFrame) else (result, start_s)
        image, captured_s, previous = self._validate(image), float(captured_s), self._previous
        self._check_time(captured_s, previous)
        raw_checksum = (image.shape, compute_checksum(image))
        if previous is not None and raw_checksum == self._raw_checksum:
            frame = Frame(previous.image, captured_s, previous.changed_s, previous.number, previous.checksum)
        else:
            image = self._fit_view(image)
            image.flags.writeable = False
            number = 0 if previous is None else previous.number + 1
            frame = Frame(image, captured_s, captured_s, number, compute_checksum(image))
        self._previous, self._raw_checksum = frame, raw_checksum
        return frame

    def _validate(self, image: Any) -> NDArray[np.uint8]:
        channels = self._view.channels
        if isinstance(image, np.ndarray) and image.ndim == 2 and channels == 1:
            image = image[..., None]
        if (
            isinstance(image, np.ndarray)
            and image.dtype == np.uint8
            and image.ndim == 3
            and image.shape[2] == channels
            and 0 not in image.shape
        ):
            return image
        got = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else repr(image)[:100]
        raise ValueError(f"invalid image of camera {self.name!r}: expected uint8 [H, W, {channels}], got {got}")

    def _check_time(self, captured_s: float, previous: Frame | None) -> None:
        """Raise `ValueError` for a time of capture in the future, or before that of the previous frame."""
        now = self._clock.now()
        if not captured_s <= now:
            raise ValueError(
                f"invalid time of capture of camera {self.name!r}: expected at most {now}, the time of the runner's "
                f"clock, got {captured_s}. Use time.monotonic()."
            )
        # A previous frame from the future means that the clock jumped back: then the new frame counts.
        if previous is not None and captured_s < previous.captured_s <= now:
            raise ValueError(
                f"frame of camera {self.name!r} out of order: expected at least {previous.captured_s}, got {captured_s}"
            )

    def _fit_view(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a new image of the view's size."""
        size = (self._view.height, self._view.width)
        if image.shape[:2] != size and self._resize is not None:
            image = self._resize.apply(image, self._view)
        if image.shape[:2] != size:
            raise ValueError(
                f"invalid image of camera {self.name!r}: expected {size[0]} x {size[1]} pixels, got {image.shape[0]} x "
                f"{image.shape[1]}. The policy's run did not resize its images to this size."
            )
        return image.copy()


def check_frame(frame: Frame | None, now: float, *, max_age_s: float, max_frozen_s: float) -> CameraStatus:
    """Return the status of a camera with its newest frame at the time `now`."""
    if frame is None:
        return CameraStatus(None, None, "missing")
    age_s = now - frame.captured_s
    if not 0 <= age_s <= max_age_s:  # below 0: the clock jumped back
        return CameraStatus(frame, age_s, "stale")
    return CameraStatus(frame, age_s, "frozen" if now - frame.changed_s > max_frozen_s else None)


def compute_checksum(image: NDArray[np.uint8]) -> int:
    """Return the CRC-32 of the bytes of an image."""
    return zlib.crc32(np.ascontiguousarray(image).data)


def compute_skew(frames: list[Frame]) -> float:
    """Return the greatest difference between the times of capture in seconds; 0 for fewer than two frames."""
    times = [frame.captured_s for frame in frames]
    return max(times) - min(times) if times else 0.0
