"""Pictures in a labelled grid: a contact sheet of views, or one frame of a video of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from manyview.envs.views import Image
from manyview.utils.files import replace_file
from manyview.utils.optional_imports import import_optional

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont, ImageFont

EXTRA = "plots"
MIN_CELL_PX = 160
"""The least side of a picture on a sheet."""
GAP_PX = 8
FONT_PX = 14
BACKGROUND, ABSENT, LINE = 255, 228, 168
"""Shades of grey."""


@dataclass(frozen=True)
class Row:
    """Pictures from left to right; None where a camera gave none."""

    label: str
    images: Sequence[Image | None]


def draw_grid(
    rows: Sequence[Row], *, column_labels: Sequence[str] = (), title: str = "", cell_px: int = MIN_CELL_PX
) -> Image:
    """The rows below each other as one RGB picture. Labels may have several lines.

    Args:
        rows: the pictures, grey or RGB, of any size.
        column_labels: what stands above each column.
        title: what stands above everything.
        cell_px: pictures with a smaller side are enlarged by a whole factor, so that a pixel stays a pixel.

    """
    images = [[None if picture is None else _enlarge(picture, cell_px) for picture in row.images] for row in rows]
    absent = _draw_absent_cell([picture for line in images for picture in line if picture is not None], cell_px)
    cells = [
        [_draw_text(row.label), *(absent if picture is None else picture for picture in line)]
        for row, line in zip(rows, images, strict=True)
    ]
    if column_labels:
        cells.insert(0, [_draw_text(""), *map(_draw_text, column_labels)])
    widths = [max(cell.shape[1] for cell in column) for column in zip_longest(*cells, fillvalue=_draw_text(""))]
    lines = [
        _concat_cells(
            [pad_or_crop(cell, cell.shape[0], width) for cell, width in zip(line, widths, strict=False)], axis=1
        )
        for line in cells
    ]
    around = ((GAP_PX, GAP_PX), (GAP_PX, GAP_PX), (0, 0))
    return np.pad(stack_vertically([_draw_text(title), *lines]), around, constant_values=BACKGROUND)


def stack_vertically(images: Sequence[Image]) -> Image:
    """Pictures below each other, such as several grids."""
    return _concat_cells(images, axis=0)


def save_image(image: Image, path: Path) -> None:
    """Write a picture as the file's suffix says: .png, .jpg, .webp ...

    A link in its place is replaced, not followed.
    """
    with replace_file(path) as written:
        import_optional("PIL.Image", extra=EXTRA).fromarray(image).save(written, optimize=True)


def _enlarge(image: Image, cell_px: int) -> Image:
    factor = ceil(cell_px / max(image.shape[:2]))
    grey = image.shape[2] < 3
    colours = np.repeat(image[..., :1], 3, axis=2) if grey else image[..., :3]
    enlarged = colours.repeat(factor, axis=0).repeat(factor, axis=1)
    # A line around it: where a picture is white it would have no edge.
    return np.pad(enlarged, ((1, 1), (1, 1), (0, 0)), constant_values=LINE)


def _draw_absent_cell(images: Sequence[Image], cell_px: int) -> Image:
    """A crossed out cell, as large as the largest picture."""
    height = max((picture.shape[0] for picture in images), default=cell_px)
    width = max((picture.shape[1] for picture in images), default=cell_px)
    cell = np.full((height, width, 3), ABSENT, np.uint8)
    along = np.linspace(0, 1, 2 * max(height, width))
    down, across = (along * (height - 1)).astype(int), (along * (width - 1)).astype(int)
    cell[down, across] = cell[down, width - 1 - across] = LINE
    return cell


def _draw_text(text: str) -> Image:
    """Black on white, as large as it has to be."""
    if not text:
        return np.zeros((0, 0, 3), np.uint8)
    new, draw = import_optional("PIL.Image", extra=EXTRA).new, import_optional("PIL.ImageDraw", extra=EXTRA).Draw
    box = draw(new("L", (1, 1))).multiline_textbbox((0, 0), text, _load_font())
    page = new("L", (ceil(box[2]), ceil(box[3])), BACKGROUND)
    draw(page).multiline_text((0, 0), text, 0, _load_font())
    return np.repeat(np.asarray(page)[..., None], 3, axis=2)


@cache
def _load_font() -> "FreeTypeFont | ImageFont":
    font: FreeTypeFont | ImageFont = import_optional("PIL.ImageFont", extra=EXTRA).load_default(FONT_PX)
    return font


def pad_or_crop(image: Image, height: int, width: int) -> Image:
    """The picture in the upper left of a page of this size, cut where it is larger."""
    page = np.full((height, width, 3), BACKGROUND, np.uint8)
    visible = image[:height, :width]
    page[: visible.shape[0], : visible.shape[1]] = visible
    return page


def _concat_cells(cells: Sequence[Image], *, axis: int) -> Image:
    """Below each other (axis 0) or side by side (axis 1), with gaps; what has no extent takes no room."""
    visible = [cell for cell in cells if cell.shape[axis]]
    height, width = (max(cell.shape[side] for cell in visible) for side in (0, 1))
    parts: list[Image] = []
    for cell in visible:
        gap = pad_or_crop(cell[:0, :0], *((GAP_PX, width) if axis == 0 else (height, GAP_PX)))
        part = pad_or_crop(cell, *((cell.shape[0], width) if axis == 0 else (height, cell.shape[1])))
        parts += [gap, part] if parts else [part]
    return np.concatenate(parts, axis=axis)
