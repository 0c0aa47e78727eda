"""Labeled grids of images: a contact sheet of views, or a frame of a video of them."""

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
"""Extra of manyview that installs Pillow."""
MIN_CELL_PX = 160
"""Minimum longer side of an image on a sheet."""
GAP_PX = 8
FONT_PX = 14
BACKGROUND, ABSENT, LINE = 255, 228, 168
"""Gray levels."""


@dataclass(frozen=True)
class Row:
    """A label and images from left to right; None marks an absent view."""

    label: str
    images: Sequence[Image | None]


def draw_grid(
    rows: Sequence[Row], *, column_labels: Sequence[str] = (), title: str = "", cell_px: int = MIN_CELL_PX
) -> Image:
    """Draw the rows below each other as one RGB image; labels may have several lines.

    Args:
        rows: Labels and images, gray or RGB, of any size.
        column_labels: Labels above the columns.
        title: Text above the grid.
        cell_px: Images whose longer side is smaller are enlarged by an integer factor, without interpolation.

    """
    images = [[None if image is None else _enlarge(image, cell_px) for image in row.images] for row in rows]
    absent = _draw_absent_cell([image for line in images for image in line if image is not None], cell_px)
    cells = [
        [_draw_text(row.label), *(absent if image is None else image for image in line)]
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
    margin = ((GAP_PX, GAP_PX), (GAP_PX, GAP_PX), (0, 0))
    return np.pad(stack_vertically([_draw_text(title), *lines]), margin, constant_values=BACKGROUND)


def stack_vertically(images: Sequence[Image]) -> Image:
    """Stack RGB images, such as several grids, below each other."""
    return _concat_cells(images, axis=0)


def save_image(image: Image, path: Path) -> None:
    """Write an image in the format of the suffix (.png, .jpg, .webp, ...).

    A symbolic link at `path` is replaced, not followed.
    """
    with replace_file(path) as temp_path:
        import_optional("PIL.Image", extra=EXTRA).fromarray(image).save(temp_path, optimize=True)


def pad_or_crop(image: Image, height: int, width: int) -> Image:
    """Pad an RGB image with white, or crop it, at the right and bottom."""
    page = np.full((height, width, 3), BACKGROUND, np.uint8)
    visible = image[:height, :width]
    page[: visible.shape[0], : visible.shape[1]] = visible
    return page


def _enlarge(image: Image, cell_px: int) -> Image:
    factor = ceil(cell_px / max(image.shape[:2]))
    is_gray = image.shape[2] < 3
    rgb = np.repeat(image[..., :1], 3, axis=2) if is_gray else image[..., :3]
    enlarged = rgb.repeat(factor, axis=0).repeat(factor, axis=1)
    # A border, so that white regions have an edge.
    return np.pad(enlarged, ((1, 1), (1, 1), (0, 0)), constant_values=LINE)


def _draw_absent_cell(images: Sequence[Image], cell_px: int) -> Image:
    """Draw a crossed-out cell of the size of the largest image."""
    height = max((image.shape[0] for image in images), default=cell_px)
    width = max((image.shape[1] for image in images), default=cell_px)
    cell = np.full((height, width, 3), ABSENT, np.uint8)
    diagonal = np.linspace(0, 1, 2 * max(height, width))
    rows, columns = (diagonal * (height - 1)).astype(int), (diagonal * (width - 1)).astype(int)
    cell[rows, columns] = cell[rows, width - 1 - columns] = LINE
    return cell


def _draw_text(text: str) -> Image:
    """Draw black text on white, cropped to its size; empty text gives an image of size 0."""
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


def _concat_cells(cells: Sequence[Image], *, axis: int) -> Image:
    """Concatenate cells along an axis with gaps, skipping empty ones."""
    visible = [cell for cell in cells if cell.shape[axis]]
    height, width = (max(cell.shape[side] for cell in visible) for side in (0, 1))
    parts: list[Image] = []
    for cell in visible:
        gap = pad_or_crop(cell[:0, :0], *((GAP_PX, width) if axis == 0 else (height, GAP_PX)))
        part = pad_or_crop(cell, *((cell.shape[0], width) if axis == 0 else (height, cell.shape[1])))
        parts += [gap, part] if parts else [part]
    return np.concatenate(parts, axis=axis)
