"""Contact sheets and videos of views; Pillow and imageio are imported on use."""

from manyview.envs.visualization.contact_sheet import draw_contact_sheet, render_fault_rows
from manyview.envs.visualization.grid import Row, draw_grid, save_image, stack_vertically
from manyview.envs.visualization.recording import (
    RecordedStep,
    ViewSummary,
    compute_median_step_ms,
    extract_newest_frames,
    record_random_steps,
    summarize_views,
)
from manyview.envs.visualization.video import check_video_file, draw_video_frames, write_video

__all__ = [
    "RecordedStep",
    "Row",
    "ViewSummary",
    "check_video_file",
    "compute_median_step_ms",
    "draw_contact_sheet",
    "draw_grid",
    "draw_video_frames",
    "extract_newest_frames",
    "record_random_steps",
    "render_fault_rows",
    "save_image",
    "stack_vertically",
    "summarize_views",
    "write_video",
]
