"""Reading a trace, and repeating its actions offline."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cameras import compute_checksum
from .protocols import PolicyLike
from .trace import FORMAT, decode_array, format_frame_key, get_frames_dir


class TraceError(ValueError):
    """A trace is damaged or incomplete."""


@dataclass(frozen=True)
class TraceReplay:
    """Actions of a policy on the observations of a trace."""

    ticks: list[int] = field(default_factory=list)
    """Numbers of the ticks at which the policy acted."""
    recorded: list[NDArray[Any]] = field(default_factory=list)
    replayed: list[NDArray[Any]] = field(default_factory=list)

    @property
    def mismatches(self) -> list[int]:
        """Numbers of the ticks whose actions differ in any bit."""
        return [
            tick
            for tick, recorded, replayed in zip(self.ticks, self.recorded, self.replayed, strict=True)
            if recorded.dtype != replayed.dtype or recorded.tobytes() != replayed.tobytes()
        ]


def read_trace(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the records of a trace in order: `start`, `tick`, ..., `end`.

    An unfinished last line, as a killed process leaves it, is skipped. Raises `TraceError` for anything else that is no
    record.
    """
    lines = Path(path).read_bytes().split(b"\n")[:-1]
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or record.get("kind") not in ("start", "tick", "end"):
            raise TraceError(f"{path}, line {number}: expected a record of a trace, got {line[:80]!r}")
        records.append(record)
    if not records or records[0]["kind"] != "start" or records[0].get("format") != FORMAT:
        raise TraceError(f"{path}: expected a trace that starts with a record of format {FORMAT}, got another file")
    return records


def replay_trace(policy: PolicyLike, trace: str | os.PathLike[str]) -> TraceReplay:
    """Return the policy's actions on the recorded observations, next to the recorded actions.

    The policy is reset first. The trace needs its frames (`store_frames=True`). Raises `TraceError` if records or
    frames are missing or damaged: the frame stack of a policy depends on all of them.
    """
    path = Path(trace)
    records = read_trace(path)
    views = [view["name"] for view in records[0]["views"]]
    frames = FrameReader(get_frames_dir(path))
    replay = TraceReplay()
    policy.reset()
    for record in _iter_ticks(records, path):
        recorded = decode_array(record["raw"])
        if recorded is None:
            continue
        observation: dict[str, NDArray[Any] | None] = dict.fromkeys(views)
        for name, (number, checksum) in record["frames"].items():
            observation[name] = frames.read(name, number, checksum)
        observation |= {name: decode_array(vector) for name, vector in record["vectors"].items()}
        replay.ticks.append(record["tick"])
        replay.recorded.append(recorded)
        replay.replayed.append(np.asarray(policy.act(observation)))
    return replay


def _iter_ticks(records: list[dict[str, Any]], path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of ticks; `TraceError` at a gap, or if the last ones are missing."""
    expected = 0
    for record in records:
        if record["kind"] == "end" and record["ticks"] != expected:
            raise TraceError(
                f"{path}: expected {record['ticks']} ticks, as its end says, got {expected}. Records were dropped, "
                "because the disk was too slow or full; the trace cannot be replayed."
            )
        if record["kind"] == "tick":
            if record["tick"] != expected:
                raise TraceError(
                    f"{path}: expected tick {expected}, got {record['tick']}. Records were dropped, because the disk "
                    "was too slow or full; the trace cannot be replayed."
                )
            yield record
            expected += 1


class FrameReader:
    """Frames of a trace, read segment by segment in the order of recording."""

    def __init__(self, directory: Path) -> None:
        self._paths = sorted(directory.glob("[0-9]*.npz"))
        self._directory = directory
        self._segment: dict[str, NDArray[Any]] = {}
        self._newest: dict[str, tuple[str, NDArray[Any]]] = {}
        """Key and frame by view: a frame is stored once and may be seen at many ticks."""

    def read(self, view: str, number: int, checksum: int) -> NDArray[Any]:
        """Return a frame; `TraceError` if it is missing or its checksum differs."""
        key = format_frame_key(view, number)
        if view not in self._newest or self._newest[view][0] != key:
            self._newest[view] = (key, self._find(key))
        frame = self._newest[view][1]
        if compute_checksum(frame) != checksum:
            raise TraceError(f"damaged frame {key} in {self._directory}: its checksum differs from the trace")
        return frame

    def _find(self, key: str) -> NDArray[Any]:
        while key not in self._segment:
            if not self._paths:
                raise TraceError(
                    f"missing frame {key} in {self._directory}: expected the frames of all ticks. Record with "
                    "store_frames=True."
                )
            self._segment = _load_segment(self._paths.pop(0))
        return self._segment[key]


def _load_segment(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file, np.load(file) as segment:
            return {name: segment[name] for name in segment.files}
    except Exception as error:  # zipfile, zlib and numpy have many errors for a damaged file
        raise TraceError(f"damaged segment {path}: {type(error).__name__}: {error}") from error
