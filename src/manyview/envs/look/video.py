"""Pictures one after the other as a video file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from manyview.envs.views import Image
from manyview.utils.files import replace_file
from manyview.utils.optional_imports import import_optional


def write_video(path: Path, frames: Iterable[Image], *, frames_per_s: int = 15) -> None:
    """Write RGB frames of one size; the file's suffix, .mp4 or .gif, says which kind of video.

    A link in its place is replaced, not followed.
    """
    imageio = import_optional("imageio.v2", extra="video")
    import_optional("imageio_ffmpeg", extra="video")
    kind: dict[str, Any] = {"duration": 1000 / frames_per_s, "loop": 0}  # ms; for ever
    if path.suffix != ".gif":
        # The usual encoders want even sides. Asking for multiples of two here keeps imageio from rescaling to sixteen.
        kind = {"fps": frames_per_s, "macro_block_size": 2, "quality": 8}
    with replace_file(path) as written, imageio.get_writer(written, **kind) as writer:
        for frame in frames:
            height, width = frame.shape[:2]
            writer.append_data(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))
