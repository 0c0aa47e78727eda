"""Decoding and encoding of the videos of a dataset, by the ffmpeg that imageio brings."""

import os
import re
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np

from manyview.data.lerobot.layout import DatasetError
from manyview.envs.views import Image
from manyview.utils.optional_imports import import_optional
from manyview.utils.text import sanitize_text

CRF = 12
"""Quality of an encoded video, lower is better: colors are a few of 255 levels off."""
KEYFRAME_INTERVAL = 2
"""Frames between two that can be decoded alone: training reads at random."""
# A hostile file must not read others: only this demuxer, only local files, no references between files.
INPUT_OPTIONS = ["-protocol_whitelist", "file", "-f", "mov", "-enable_drefs", "0", "-noautorotate"]
# Every stored frame once: no duplicates to fill a gap between timestamps. A PPM image says its size.
OUTPUT_OPTIONS = ["-map", "0:v:0", "-fps_mode", "passthrough", "-pix_fmt", "rgb24", "-c:v", "ppm"]
MAX_HEADER_BYTES, MAX_ERROR_BYTES = 20, 10_000


class VideoReader:
    """Read frames of a video in order; going back opens it again.

    Args:
        path: MP4 file.
        name: Its name in errors.
        shape: Height and width that the metadata declares.

    """

    def __init__(self, path: Path, name: str, shape: tuple[int, int]) -> None:
        self._command: list[str] = [
            import_optional("imageio_ffmpeg", extra="datasets").get_ffmpeg_exe(),
            *("-v", "error", "-nostdin", "-threads", "1"),
            *INPUT_OPTIONS,
            *("-i", f"file:{path.absolute()}"),
            *OUTPUT_OPTIONS,
            *("-f", "image2pipe", "-"),
        ]
        self._name, self._shape = name, shape
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._position = 0

    def read(self, start: int, count: int) -> Iterator[Image]:
        """Yield `count` frames [H, W, 3] from frame `start` on. Raises `DatasetError` if the video is shorter."""
        if self._process is None or start < self._position:
            self._open()
        for _ in range(start - self._position):
            self._read_frame()
        for _ in range(count):
            yield np.frombuffer(self._read_frame(), np.uint8).reshape(*self._shape, 3)

    def close(self) -> None:
        """End the decoder."""
        if self._process is not None and self._errors is not None:
            self._process.kill()
            self._process.communicate()  # closes the pipe
            self._errors.close()
            self._process = None

    def _open(self) -> None:
        self.close()
        self._errors = TemporaryFile()  # noqa: SIM115  a pipe that nobody reads would fill up
        self._process = subprocess.Popen(  # noqa: S603
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors
        )
        self._position = 0

    def _read_frame(self) -> bytes:
        assert self._process is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        output = self._process.stdout
        header = b"".join(output.readline(MAX_HEADER_BYTES) for _ in range(3))
        height, width = self._shape
        if header != b"P6\n%d %d\n255\n" % (width, height):
            raise self._explain_header(header)
        frame = output.read(3 * height * width)
        if len(frame) < 3 * height * width:
            raise DatasetError(f"{self._name} cannot be decoded: frame {self._position} is incomplete")
        self._position += 1
        return frame

    def _explain_header(self, header: bytes) -> DatasetError:
        """Return the error for anything but the header of a frame of the declared size."""
        height, width = self._shape
        if sizes := re.match(rb"P6\n(\d+) (\d+)\n", header):
            return DatasetError(
                f"{self._name} has another size than declared: expected {height}x{width}, got "
                f"{int(sizes[2])}x{int(sizes[1])}"
            )
        assert self._process is not None  # noqa: S101
        assert self._errors is not None  # noqa: S101
        self._process.wait()
        if reason := _read_reason(self._errors):
            return DatasetError(f"{self._name} cannot be decoded: {reason}")
        return DatasetError(
            f"{self._name} is too short: expected a frame {self._position}, as the metadata says, got the end"
        )


class VideoWriter:
    """Write frames of one size as an H.264 video with a fixed rate."""

    def __init__(self, path: Path, shape: tuple[int, int], fps: float) -> None:
        height, width = shape
        command = [
            import_optional("imageio_ffmpeg", extra="datasets").get_ffmpeg_exe(),
            *("-v", "error", "-y", "-threads", "1"),
            *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"),
            *("-r", str(Fraction(fps).limit_denominator()), "-i", "-", "-an"),
            *("-c:v", "libx264", "-pix_fmt", get_pixel_format(shape), "-crf", str(CRF), "-g", str(KEYFRAME_INTERVAL)),
            *("-threads", "1", f"file:{path.absolute()}"),
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._errors = TemporaryFile()  # noqa: SIM115  closed by `close`
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            process_group=0,  # Ctrl-C reaches this process only, which ends the video
        )

    def add(self, image: Image) -> None:
        """Append a frame [H, W, 3]. Raises `OSError` if the encoder has failed."""
        assert self._process.stdin is not None  # noqa: S101
        try:
            self._process.stdin.write(np.ascontiguousarray(image).data)
        except BrokenPipeError:
            self.close()
            raise

    def close(self) -> None:
        """Finish the file. Raises `OSError` unless it is complete."""
        if self._errors.closed:
            return
        self._process.communicate()  # closes the pipe
        with self._errors:
            if self._process.returncode != 0:
                reason = _read_reason(self._errors) or f"ffmpeg ended with status {self._process.returncode}"
                raise OSError(f"{self._path.name} cannot be written: {reason}")


def _read_reason(errors: IO[bytes]) -> str:
    """Return the last error of ffmpeg, without names of files; empty if there is none."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - MAX_ERROR_BYTES))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return sanitize_text(lines[-1].rpartition(": ")[2], max_chars=200) if lines else ""


def get_pixel_format(shape: tuple[int, int]) -> str:
    """Return the pixel format of a video; halved colors, which all players know, need even sides."""
    return "yuv420p" if shape[0] % 2 == shape[1] % 2 == 0 else "yuv444p"
