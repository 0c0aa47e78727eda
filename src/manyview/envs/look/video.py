"""Pictures one after the other as a video file."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from manyview.envs.optional import optional
from manyview.envs.views import Image


def write_video(path: Path, frames: Iterable[Image], *, frames_per_s: int = 15) -> None:
    """Write RGB frames of one size; the file's suffix, such as .mp4, says which kind of video."""
    imageio = optional("imageio.v2", extra="video")
    optional("imageio_ffmpeg", extra="video")
    path.parent.mkdir(parents=True, exist_ok=True)
    # The usual encoders want even sides. Asking for multiples of two here keeps imageio from rescaling to sixteen.
    with imageio.get_writer(path, fps=frames_per_s, macro_block_size=2, quality=8) as writer:
        for frame in frames:
            height, width = frame.shape[:2]
            writer.append_data(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))
