"""Trace of a run on a robot: one JSON line per tick, and the frames in npz segments.

A thread writes; the control loop only puts records into a bounded queue. A slow or full disk costs records, which are
counted, and never a tick.
"""

import json
import math
import os
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .cameras import Frame, MaskReason
from .protocols import SpecLike

FORMAT = 1
MAX_PENDING = 256
"""Records in the queue; further ones are dropped."""
SEGMENT_BYTES = 16 * 2**20
"""Frames in memory before a segment is written."""

Outcome = Literal["act", "hold", "stop"]


@dataclass
class Tick:
    """One turn of the control loop."""

    number: int
    time_s: float
    """Time at which the frames were taken."""
    ages_s: dict[str, float | None] = field(default_factory=dict)
    """Age of the newest frame by view, also of masked ones; None before the first frame."""
    masked: dict[str, MaskReason] = field(default_factory=dict)
    """Reason by masked view."""
    frames: dict[str, Frame] = field(default_factory=dict)
    """Frames that the policy saw."""
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    skew_s: float = 0.0
    """Greatest difference between the times of capture of `frames`."""
    raw: NDArray[Any] | None = None
    """Action of the policy; None if it was not asked."""
    sent: NDArray[Any] | None = None
    """Action that the robot received; None if there was none."""
    outcome: Outcome = "act"
    reason: str = ""
    """Reason to hold or to stop."""
    policy_s: float = 0.0
    """Time in `policy.act`."""
    deadline_missed: bool = False
    """True if the action was sent after the end of its period."""
    errors: dict[str, str] = field(default_factory=dict)
    """Error of the newest read by camera."""

    def describe_masked(self) -> str:
        """Return the masked views with reason, age and error."""
        parts = []
        for name, reason in self.masked.items():
            age_s, error = self.ages_s[name], self.errors.get(name)
            details = [reason, *([] if age_s is None else [f"{age_s:.3f} s old"]), *([] if error is None else [error])]
            parts.append(f"{name} ({', '.join(details)})")
        return ", ".join(parts)


class TraceWriter:
    """Writes a trace in a background thread.

    `path` is overwritten. With `store_frames` the frames go to the directory `<path without suffix>.frames`, so that
    `replay_trace` can repeat the run.
    """

    def __init__(self, path: str | os.PathLike[str], *, store_frames: bool = False) -> None:
        self.path = Path(path)
        self.num_dropped = 0
        """Records that are not in the file: the queue was full, or the disk failed."""
        self.num_lost_frames = 0
        """Frames that are not in a segment."""
        self.error: str | None = None
        """Latest error of the disk."""
        self._file = self.path.open("wb", buffering=0)
        self._size = 0
        self._segments = FrameSegments(get_frames_dir(self.path)) if store_frames else None
        self._queue: queue.Queue[Mapping[str, Any] | Tick | None] = queue.Queue(MAX_PENDING)
        self._thread = threading.Thread(target=self._write_records, name="trace", daemon=True)
        self._thread.start()

    def put(self, record: Mapping[str, Any] | Tick) -> None:
        """Queue a record; drops it if the queue is full."""
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.num_dropped += 1

    def close(self, timeout_s: float) -> bool:
        """Write what is queued and return whether that ended within `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return False  # the disk hangs: its thread is abandoned
        self._thread.join(max(0.0, end_s - time.monotonic()))
        return not self._thread.is_alive()

    def _write_records(self) -> None:
        while (record := self._queue.get()) is not None:
            try:
                if isinstance(record, Tick):
                    self._store_frames(record)
                    record = describe_tick(record)
                self._write_line(json.dumps(record, allow_nan=False).encode() + b"\n")
            except Exception as error:  # a trace never ends the control loop
                self.num_dropped += 1
                self.error = f"{type(error).__name__}: {error}"
        self._flush_frames()
        self._file.close()

    def _write_line(self, line: bytes) -> None:
        """Write a line whole; what an earlier failure left of a line is cut off first."""
        if self._file.tell() != self._size:
            self._file.truncate(self._size)
            self._file.seek(self._size)
        if self._file.write(line) != len(line):
            raise OSError("disk is full: a record was written in part")
        self._size += len(line)

    def _store_frames(self, tick: Tick) -> None:
        if self._segments is not None:
            self._segments.add(tick.frames)
            if self._segments.num_bytes >= SEGMENT_BYTES:
                self._flush_frames()

    def _flush_frames(self) -> None:
        if self._segments is None:
            return
        count = self._segments.num_frames
        try:
            self._segments.flush()
        except OSError as error:
            self.num_lost_frames += count
            self.error = f"{type(error).__name__}: {error}"


class FrameSegments:
    """Frames by view and number in files `000000.npz`, `000001.npz`, ..., each frame once."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        for old in directory.glob("[0-9]*.npz"):  # of an earlier trace of this name
            old.unlink()
        self._directory = directory
        self._frames: dict[str, NDArray[np.uint8]] = {}
        self._newest: dict[str, int] = {}
        self._num_segments = 0

    @property
    def num_bytes(self) -> int:
        return sum(image.nbytes for image in self._frames.values())

    @property
    def num_frames(self) -> int:
        return len(self._frames)

    def add(self, frames: Mapping[str, Frame]) -> None:
        """Add the frames that are not there yet."""
        for name, frame in frames.items():
            if self._newest.get(name) != frame.number:
                self._newest[name] = frame.number
                self._frames[format_frame_key(name, frame.number)] = frame.image

    def flush(self) -> None:
        """Write a segment; the frames are forgotten, also if it fails."""
        frames, self._frames = self._frames, {}
        if frames:
            target = self._directory / f"{self._num_segments:06d}.npz"
            partial = target.with_suffix(".part")
            with partial.open("wb") as file:
                np.savez(file, **frames)  # type: ignore[arg-type]  # numpy's flags are keywords too
            partial.replace(target)
            self._num_segments += 1


def get_frames_dir(trace: Path) -> Path:
    """Return the directory of the frames of a trace."""
    return trace.with_suffix(".frames")


def format_frame_key(view: str, number: int) -> str:
    """Return the name of a frame in a segment."""
    return f"{view}/{number}"


def describe_start(spec: SpecLike, safe_action: NDArray[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first record of a trace."""
    return {
        "kind": "start",
        "format": FORMAT,
        **settings,
        "views": [{"name": view.name, "shape": [view.height, view.width, view.channels]} for view in spec.views],
        "vectors": [{"name": vector.name, "size": vector.size} for vector in spec.vectors],
        "safe_action": encode_array(safe_action),
    }


def describe_tick(tick: Tick) -> dict[str, Any]:
    """Return a tick as JSON values; numbers of actions and state vectors stay exact."""
    return {
        "kind": "tick",
        "tick": tick.number,
        "time_s": tick.time_s,
        "ages_s": tick.ages_s,
        "masked": tick.masked,
        "frames": {name: [frame.number, frame.checksum] for name, frame in tick.frames.items()},
        "vectors": {name: encode_array(vector) for name, vector in tick.vectors.items()},
        "skew_s": tick.skew_s,
        "raw": encode_array(tick.raw),
        "sent": encode_array(tick.sent),
        "outcome": tick.outcome,
        "reason": tick.reason,
        "policy_s": tick.policy_s,
        "deadline_missed": tick.deadline_missed,
        "errors": tick.errors,
    }


def encode_array(array: NDArray[Any] | None) -> dict[str, Any] | None:
    """Return type and values of an array of at most one axis; numbers that JSON does not have become text."""
    if array is None:
        return None
    values = array.tolist()
    if isinstance(values, list):
        values = [value if not isinstance(value, float) or math.isfinite(value) else str(value) for value in values]
    elif isinstance(values, float) and not math.isfinite(values):
        values = str(values)
    return {"dtype": array.dtype.name, "values": values}


def decode_array(plain: Any) -> NDArray[Any] | None:
    """Return the array that `encode_array` encoded."""
    return None if plain is None else np.array(plain["values"], dtype=plain["dtype"])
