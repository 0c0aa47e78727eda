"""Videos of recorded steps."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from manyview.envs.views import Image, View
from manyview.envs.visualization.contact_sheet import format_step_label, format_view_label
from manyview.envs.visualization.grid import Row, draw_grid, pad_or_crop
from manyview.envs.visualization.recording import RecordedStep
from manyview.utils.files import replace_file
from manyview.utils.optional_imports import import_optional
from manyview.utils.output_paths import VIDEO_SUFFIXES, check_output_file


def draw_video_frames(
    views: Sequence[View], steps: Sequence[RecordedStep], *, title: str = "", captions: Sequence[str] | None = None
) -> Iterator[Image]:
    """Yield an RGB image per step with all views side by side, all of the size of the first."""
    columns = [format_view_label(view) for view in views]
    size = None
    for step, caption in zip(steps, captions or map(format_step_label, steps), strict=True):
        row = Row("", [step.images[view.name] for view in views])
        image = draw_grid([row], column_labels=columns, title=f"{title}\n{caption}".strip())
        size = size or image.shape[:2]
        yield pad_or_crop(image, *size)  # a longer caption would change the frame size


def check_video_file(path: Path) -> None:
    """Check that a video can be written at `path`, before it is recorded.

    Raises:
        ValueError: The suffix is neither .mp4 nor .gif.
        ImportError: The extra `video` is not installed.
        OSError: A directory is at `path`, or a file where one of its directories should be.

    """
    check_output_file(path, VIDEO_SUFFIXES)
    for module in ("imageio.v2", "imageio_ffmpeg"):
        import_optional(module, extra="video")


def write_video(path: Path, frames: Iterable[Image], *, frames_per_s: int = 15) -> None:
    """Write RGB frames of equal size as a video in the format of the suffix, .mp4 or .gif.

    A symbolic link at `path` is replaced, not followed. `check_video_file` names the errors.
    """
    check_video_file(path)
    imageio = import_optional("imageio.v2", extra="video")
    options: dict[str, Any] = {"duration": 1000 / frames_per_s, "loop": 0}  # in ms; loops forever
    if path.suffix.lower() != ".gif":
        # Common encoders need even sides. A block size of 2 keeps imageio from rescaling to multiples of 16.
        options = {"fps": frames_per_s, "macro_block_size": 2, "quality": 8}
    with replace_file(path) as temp_path, imageio.get_writer(temp_path, **options) as writer:
        for frame in frames:
            height, width = frame.shape[:2]
            writer.append_data(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))
