"""Looking at environments: contact sheets and videos of their views. Pillow and imageio are imported when drawing."""

from manyview.envs.look.broken import broken_rows
from manyview.envs.look.grid import Row, below, draw_grid, save_picture
from manyview.envs.look.sheet import contact_sheet, side_by_side
from manyview.envs.look.video import write_video
from manyview.envs.look.watch import Moment, Summary, newest_frames, step_ms, summarise, watch

__all__ = [
    "Moment",
    "Row",
    "Summary",
    "below",
    "broken_rows",
    "contact_sheet",
    "draw_grid",
    "newest_frames",
    "save_picture",
    "side_by_side",
    "step_ms",
    "summarise",
    "watch",
    "write_video",
]
