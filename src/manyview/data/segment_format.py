"""Segment format: steps of a replay buffer, compressed with zstd and checksummed.

    magic, first step, step after the last, number of parts, compressed size of each part
    parts: the records of the steps, the frames of each view, the features if stored
    SHA-256 of everything before it

Frames and features are stored as the byte-wise difference to the previous step's. The uncompressed size of a part
follows from the replay buffer that reads it, never from the file.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from manyview.data.layout import check_features, check_records

MAGIC = b"mvseg\x00\x00\x01"
HEADER = struct.Struct("<8sQQI")
PART_SIZE = struct.Struct("<Q")
DIGEST_BYTES = hashlib.sha256().digest_size
MAX_SEGMENT_STEPS = 512
"""Maximum steps of a segment: bounds the memory of unpacking untrusted bytes to tens of megabytes."""
COMPRESSION_LEVEL = 1
"""zstd level. On simulator frames, higher ones take four times as long to save a twentieth of the size."""


class SegmentError(ValueError):
    """Invalid, unexpected or incomplete segment."""


def pack_segment(start: int, steps: NDArray[Any], arrays: Sequence[NDArray[Any]]) -> tuple[bytes, str]:
    """Return the bytes of a segment and their SHA-256, for steps from index `start` on.

    `steps` [N] are the records, `arrays` [N, ...] their rows of `ReplayBuffer.rings`.
    """
    compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
    parts = [compressor.compress(steps.tobytes()), *(compressor.compress(_diff_rows(array).data) for array in arrays)]
    header = HEADER.pack(MAGIC, start, start + len(steps), len(parts))
    body = b"".join([header, *(PART_SIZE.pack(len(part)) for part in parts), *parts])
    digest = hashlib.sha256(body)
    return body + digest.digest(), digest.hexdigest()


class Segment:
    """Validated segment. Raises `SegmentError` if `data` is not one."""

    def __init__(self, data: bytes) -> None:
        body, digest = memoryview(data)[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
        if len(body) < HEADER.size or body[: len(MAGIC)] != MAGIC:
            raise SegmentError(f"not a segment: expected a header that starts with {MAGIC!r}")
        if hashlib.sha256(body).digest() != digest:
            raise SegmentError("checksum mismatch: the segment was changed or truncated")
        self.sha256 = digest.hex()
        _, self.start, self.end, count = HEADER.unpack_from(body)
        header_bytes = HEADER.size + PART_SIZE.size * count
        if not 0 < self.end - self.start <= MAX_SEGMENT_STEPS or header_bytes > len(body):
            raise SegmentError(
                f"invalid header: expected 1 to {MAX_SEGMENT_STEPS} steps in at most {len(body)} bytes, got steps "
                f"{self.start} to {self.end} in {count} parts"
            )
        sizes = [PART_SIZE.unpack_from(body, HEADER.size + PART_SIZE.size * part)[0] for part in range(count)]
        if header_bytes + sum(sizes) != len(body):
            raise SegmentError(
                f"invalid part sizes: expected {len(body)} bytes in all, got {header_bytes + sum(sizes)}"
            )
        ends = np.cumsum([header_bytes, *sizes], dtype=object).tolist()
        self._parts = [body[start:end] for start, end in pairwise(ends)]

    def __len__(self) -> int:
        return int(self.end - self.start)

    def unpack_into(self, steps: NDArray[Any], rings: Sequence[NDArray[Any]], *, oldest: int) -> None:
        """Write the steps from `oldest` on to rings, step `i` to slot `i % capacity`.

        Raises `SegmentError` if they do not fit the rings.
        """
        if len(self._parts) != 1 + len(rings) or len(self) > len(steps):
            raise SegmentError(
                f"segment does not fit this replay buffer: expected at most {len(steps)} steps in {1 + len(rings)} "
                f"parts, got {len(self)} steps in {len(self._parts)} parts"
            )
        slots = [(offset, index % len(steps)) for offset, index in enumerate(range(self.start, self.end))]
        retained = [(offset, slot) for offset, slot in slots if self.start + offset >= oldest]
        records = np.frombuffer(self._decompress(0, steps), steps.dtype)
        _check(check_records, records)
        for offset, slot in retained:
            steps[slot] = records[offset]
        for part, ring in enumerate(rings, start=1):
            target = ring.view(np.uint8)
            row = np.zeros(target.shape[1:], np.uint8)
            differences = np.frombuffer(self._decompress(part, ring), np.uint8).reshape(len(self), *row.shape)
            first = retained[0][0] if retained else len(self)
            for offset, slot in slots:
                row = np.add(row, differences[offset], out=target[slot] if offset >= first else None)
            if ring.dtype == np.float32:
                _check(check_features, ring[[slot for _, slot in retained]])

    def _decompress(self, part: int, ring: NDArray[Any]) -> bytes:
        data, expected = self._parts[part], len(self) * ring[:1].nbytes
        try:
            # Check the declared size before any memory is allocated for it.
            size = zstandard.frame_content_size(data)
            if size != expected:
                raise SegmentError(f"part {part}: expected {expected} bytes for {len(self)} steps, got {size}")
            raw = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise SegmentError(f"part {part}: {error}") from None
        return raw


def _check(check: Callable[[NDArray[Any]], None], values: NDArray[Any]) -> None:
    """Raise the ValueError of a check as `SegmentError`."""
    try:
        check(values)
    except ValueError as error:
        raise SegmentError(str(error)) from None


def _diff_rows(array: NDArray[Any]) -> NDArray[np.uint8]:
    rows = array.view(np.uint8)
    differences = rows.copy()
    differences[1:] -= rows[:-1]
    return differences
