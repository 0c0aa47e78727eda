"""Pictures in a labelled grid: a contact sheet of views, or one frame of a video of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from manyview.envs.optional import optional
from manyview.envs.views import Image
from manyview.utils.files import replace_file

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont, ImageFont

EXTRA = "plots"
CELL_PX = 160
"""The least side of a picture on a sheet."""
GAP_PX = 8
FONT_PX = 14
PAPER, ABSENT, LINE = 255, 228, 168
"""Shades of grey."""


@dataclass(frozen=True)
class Row:
    """Pictures from left to right; None where a camera gave none."""

    label: str
    pictures: Sequence[Image | None]


def draw_grid(rows: Sequence[Row], *, columns: Sequence[str] = (), title: str = "", cell_px: int = CELL_PX) -> Image:
    """The rows below each other as one RGB picture. Labels may have several lines.

    Args:
        rows: the pictures, grey or RGB, of any size.
        columns: what stands above each column.
        title: what stands above everything.
        cell_px: pictures with a smaller side are enlarged by a whole factor, so that a pixel stays a pixel.

    """
    pictures = [[None if picture is None else _enlarged(picture, cell_px) for picture in row.pictures] for row in rows]
    absent = _absent([picture for line in pictures for picture in line if picture is not None], cell_px)
    cells = [
        [_text(row.label), *(absent if picture is None else picture for picture in line)]
        for row, line in zip(rows, pictures, strict=True)
    ]
    if columns:
        cells.insert(0, [_text(""), *map(_text, columns)])
    widths = [max(cell.shape[1] for cell in column) for column in zip_longest(*cells, fillvalue=_text(""))]
    lines = [
        _joined([sized(cell, cell.shape[0], width) for cell, width in zip(line, widths, strict=False)], axis=1)
        for line in cells
    ]
    around = ((GAP_PX, GAP_PX), (GAP_PX, GAP_PX), (0, 0))
    return np.pad(below([_text(title), *lines]), around, constant_values=PAPER)


def below(pictures: Sequence[Image]) -> Image:
    """Pictures below each other, such as several grids."""
    return _joined(pictures, axis=0)


def save_picture(picture: Image, path: Path) -> None:
    """Write a picture as the file's suffix says: .png, .jpg, .webp ...

    A link in its place is replaced, not followed.
    """
    with replace_file(path) as written:
        optional("PIL.Image", extra=EXTRA).fromarray(picture).save(written, optimize=True)


def _enlarged(picture: Image, cell_px: int) -> Image:
    factor = ceil(cell_px / max(picture.shape[:2]))
    grey = picture.shape[2] < 3
    colours = np.repeat(picture[..., :1], 3, axis=2) if grey else picture[..., :3]
    enlarged = colours.repeat(factor, axis=0).repeat(factor, axis=1)
    # A line around it: where a picture is white it would have no edge.
    return np.pad(enlarged, ((1, 1), (1, 1), (0, 0)), constant_values=LINE)


def _absent(pictures: Sequence[Image], cell_px: int) -> Image:
    """A crossed out cell, as large as the largest picture."""
    height = max((picture.shape[0] for picture in pictures), default=cell_px)
    width = max((picture.shape[1] for picture in pictures), default=cell_px)
    cell = np.full((height, width, 3), ABSENT, np.uint8)
    along = np.linspace(0, 1, 2 * max(height, width))
    down, across = (along * (height - 1)).astype(int), (along * (width - 1)).astype(int)
    cell[down, across] = cell[down, width - 1 - across] = LINE
    return cell


def _text(text: str) -> Image:
    """Black on white, as large as it has to be."""
    if not text:
        return np.zeros((0, 0, 3), np.uint8)
    new, draw = optional("PIL.Image", extra=EXTRA).new, optional("PIL.ImageDraw", extra=EXTRA).Draw
    box = draw(new("L", (1, 1))).multiline_textbbox((0, 0), text, _font())
    page = new("L", (ceil(box[2]), ceil(box[3])), PAPER)
    draw(page).multiline_text((0, 0), text, 0, _font())
    return np.repeat(np.asarray(page)[..., None], 3, axis=2)


@cache
def _font() -> "FreeTypeFont | ImageFont":
    font: FreeTypeFont | ImageFont = optional("PIL.ImageFont", extra=EXTRA).load_default(FONT_PX)
    return font


def sized(picture: Image, height: int, width: int) -> Image:
    """The picture in the upper left of a page of this size, cut where it is larger."""
    page = np.full((height, width, 3), PAPER, np.uint8)
    cut = picture[:height, :width]
    page[: cut.shape[0], : cut.shape[1]] = cut
    return page


def _joined(cells: Sequence[Image], *, axis: int) -> Image:
    """Below each other (axis 0) or side by side (axis 1), with gaps; what has no extent takes no room."""
    there = [cell for cell in cells if cell.shape[axis]]
    height, width = (max(cell.shape[side] for cell in there) for side in (0, 1))
    parts: list[Image] = []
    for cell in there:
        gap = sized(cell[:0, :0], *((GAP_PX, width) if axis == 0 else (height, GAP_PX)))
        part = sized(cell, *((cell.shape[0], width) if axis == 0 else (height, cell.shape[1])))
        parts += [gap, part] if parts else [part]
    return np.concatenate(parts, axis=axis)
