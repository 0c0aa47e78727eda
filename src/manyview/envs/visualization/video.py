"""What was watched, as a contact sheet or as the frames of a video."""

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


def draw_video_frames(
    views: Sequence[View], steps: Sequence[RecordedStep], *, title: str = "", captions: Sequence[str] | None = None
) -> Iterator[Image]:
    """For each moment a picture of all views beside each other; all have the size of the first."""
    columns = [format_view_label(view) for view in views]
    size = None
    for moment, caption in zip(steps, captions or map(format_step_label, steps), strict=True):
        row = Row("", [moment.images[view.name] for view in views])
        image = draw_grid([row], column_labels=columns, title=f"{title}\n{caption}".strip())
        size = size or image.shape[:2]
        yield pad_or_crop(image, *size)  # a longer caption must not change the size of a video


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
