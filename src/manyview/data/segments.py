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
HEADER = struct.Struct("<8sQQI")
PART_SIZE = struct.Struct("<Q")
DIGEST_BYTES = hashlib.sha256().digest_size
MAX_SEGMENT_STEPS = 512
"""Of one segment, so that nobody makes us unpack more than tens of megabytes at once."""
COMPRESSION_LEVEL = 1
"""Higher ones take four times the time for a twentieth of the size, on frames of simulators."""


class SegmentError(ValueError):
    """Bytes that are no segment, not the expected one, or not whole."""


def pack_segment(start: int, steps: NDArray[Any], frames: Sequence[NDArray[np.uint8]]) -> tuple[bytes, str]:
    """The segment of steps from index `start` on, and its checksum: their records and, of each view, their frames."""
    compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
    parts = [compressor.compress(steps.tobytes()), *(compressor.compress(_diff_frames(view).data) for view in frames)]
    header = HEADER.pack(MAGIC, start, start + len(steps), len(parts))
    body = b"".join([header, *(PART_SIZE.pack(len(part)) for part in parts), *parts])
    digest = hashlib.sha256(body)
    return body + digest.digest(), digest.hexdigest()


class Segment:
    """A segment that is whole; `unpack_into` puts it into a replay's rings."""

    def __init__(self, data: bytes) -> None:
        body, digest = memoryview(data)[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
        if len(body) < HEADER.size or body[: len(MAGIC)] != MAGIC:
            raise SegmentError("no segment")
        if hashlib.sha256(body).digest() != digest:
            raise SegmentError("its checksum does not fit: the file was changed or cut off")
        self.sha256 = digest.hex()
        _, self.start, self.end, count = HEADER.unpack_from(body)
        header_bytes = HEADER.size + PART_SIZE.size * count
        if not 0 < self.end - self.start <= MAX_SEGMENT_STEPS or header_bytes > len(body):
            raise SegmentError("its head makes no sense")
        sizes = [PART_SIZE.unpack_from(body, HEADER.size + PART_SIZE.size * part)[0] for part in range(count)]
        if header_bytes + sum(sizes) != len(body):
            raise SegmentError("its parts do not fill it")
        ends = np.cumsum([header_bytes, *sizes], dtype=object).tolist()
        self._parts = [body[start:end] for start, end in pairwise(ends)]

    def __len__(self) -> int:
        return int(self.end - self.start)

    def unpack_into(self, steps: NDArray[Any], frames: Sequence[NDArray[np.uint8]], *, oldest: int) -> None:
        """Into rings, each step into the slot of its number; those before `oldest` have no slot any more."""
        if len(self._parts) != 1 + len(frames) or len(self) > len(steps):
            raise SegmentError(f"it has {len(self)} steps in {len(self._parts)} parts, which do not fit this replay")
        slots = [(offset, index % len(steps)) for offset, index in enumerate(range(self.start, self.end))]
        retained = [(offset, slot) for offset, slot in slots if self.start + offset >= oldest]
        records = np.frombuffer(self._decompress(0, steps), steps.dtype)
        try:
            check_records(records)
        except ValueError as error:
            raise SegmentError(str(error)) from None
        for offset, slot in retained:
            steps[slot] = records[offset]
        for part, ring in enumerate(frames, start=1):
            frame = np.zeros(ring.shape[1:], np.uint8)
            differences = np.frombuffer(self._decompress(part, ring), np.uint8).reshape(len(self), *ring.shape[1:])
            first = retained[0][0] if retained else len(self)
            for offset, slot in slots:
                frame = np.add(frame, differences[offset], out=ring[slot] if offset >= first else None)

    def _decompress(self, part: int, ring: NDArray[Any]) -> bytes:
        data, expected = self._parts[part], len(self) * ring[:1].nbytes
        try:
            # What a frame says of its own size must be right before any memory is taken for it.
            if zstandard.frame_content_size(data) != expected:
                raise SegmentError(f"part {part} is not of the size that {len(self)} steps have")
            raw = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise SegmentError(f"part {part}: {error}") from None
        return raw


def _diff_frames(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    differences = frames.copy()
    differences[1:] -= frames[:-1]
    return differences
