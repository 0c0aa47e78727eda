"""The bytes of a segment: steps of a replay, each frame as its difference to the one before, compressed, checksummed.

    magic, first step, step after the last, number of parts, the compressed size of each part
    the parts: the records of the steps, then the frames of each view
    SHA-256 of all of it

How large a part is when it is unpacked follows from the replay that reads it, never from the file.
"""

import hashlib
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from manyview.data.layout import check_records

MAGIC = b"mvseg\x00\x00\x01"
HEAD = struct.Struct("<8sQQI")
SIZE = struct.Struct("<Q")
DIGEST_BYTES = hashlib.sha256().digest_size
MOST_STEPS = 512
"""Of one segment, so that nobody makes us unpack more than tens of megabytes at once."""
LEVEL = 1
"""Higher ones take four times the time for a twentieth of the size, on frames of simulators."""


class SegmentError(ValueError):
    """Bytes that are no segment, not the expected one, or not whole."""


def pack(begin: int, steps: NDArray[Any], frames: Sequence[NDArray[np.uint8]]) -> tuple[bytes, str]:
    """The segment of steps from number `begin` on, and its checksum: their records and, of each view, their frames."""
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    parts = [compressor.compress(steps.tobytes()), *(compressor.compress(_differences(view).data) for view in frames)]
    head = HEAD.pack(MAGIC, begin, begin + len(steps), len(parts))
    body = b"".join([head, *(SIZE.pack(len(part)) for part in parts), *parts])
    digest = hashlib.sha256(body)
    return body + digest.digest(), digest.hexdigest()


class Segment:
    """A segment that is whole; `unpack` puts it into a replay's rings."""

    def __init__(self, packed: bytes) -> None:
        body, digest = memoryview(packed)[:-DIGEST_BYTES], packed[-DIGEST_BYTES:]
        if len(body) < HEAD.size or body[: len(MAGIC)] != MAGIC:
            raise SegmentError("no segment")
        if hashlib.sha256(body).digest() != digest:
            raise SegmentError("its checksum does not fit: the file was changed or cut off")
        self.sha256 = digest.hex()
        _, self.begin, self.end, count = HEAD.unpack_from(body)
        places = HEAD.size + SIZE.size * count
        if not 0 < self.end - self.begin <= MOST_STEPS or places > len(body):
            raise SegmentError("its head makes no sense")
        sizes = [SIZE.unpack_from(body, HEAD.size + SIZE.size * part)[0] for part in range(count)]
        if places + sum(sizes) != len(body):
            raise SegmentError("its parts do not fill it")
        ends = np.cumsum([places, *sizes], dtype=object).tolist()
        self._parts = [body[begin:end] for begin, end in pairwise(ends)]

    def __len__(self) -> int:
        return int(self.end - self.begin)

    def unpack(self, steps: NDArray[Any], frames: Sequence[NDArray[np.uint8]], *, oldest: int) -> None:
        """Into rings, each step into the slot of its number; those before `oldest` have no slot any more."""
        if len(self._parts) != 1 + len(frames) or len(self) > len(steps):
            raise SegmentError(f"it has {len(self)} steps in {len(self._parts)} parts, which do not fit this replay")
        slots = [(place, number % len(steps)) for place, number in enumerate(range(self.begin, self.end))]
        kept = [(place, slot) for place, slot in slots if self.begin + place >= oldest]
        records = np.frombuffer(self._raw(0, steps), steps.dtype)
        try:
            check_records(records)
        except ValueError as error:
            raise SegmentError(str(error)) from None
        for place, slot in kept:
            steps[slot] = records[place]
        for part, ring in enumerate(frames, start=1):
            frame = np.zeros(ring.shape[1:], np.uint8)
            differences = np.frombuffer(self._raw(part, ring), np.uint8).reshape(len(self), *ring.shape[1:])
            first = kept[0][0] if kept else len(self)
            for place, slot in slots:
                frame = np.add(frame, differences[place], out=ring[slot] if place >= first else None)

    def _raw(self, part: int, ring: NDArray[Any]) -> bytes:
        packed, expected = self._parts[part], len(self) * ring[:1].nbytes
        try:
            # What a frame says of its own size must be right before any memory is taken for it.
            if zstandard.frame_content_size(packed) != expected:
                raise SegmentError(f"part {part} is not of the size that {len(self)} steps have")
            raw = zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise SegmentError(f"part {part}: {error}") from None
        return raw


def _differences(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    differences = frames.copy()
    differences[1:] -= frames[:-1]
    return differences
