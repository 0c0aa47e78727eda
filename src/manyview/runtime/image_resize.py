"""Exact area-average resizing of camera images, with numpy alone.

A policy on a robot resizes with the same code as its environment in training. All sums are of integers that a float
holds exactly, so the result does not depend on the machine.
"""

from functools import lru_cache
from math import gcd
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Aspect = Literal["crop", "pad", "stretch"]
"""`crop`: the largest square at the center. `pad`: the whole image between black bars. `stretch`: distorted."""
Channels = Literal["rgb", "bgr"]
"""Order of the color channels; OpenCV's is `bgr`."""


def resize_image(image: NDArray[np.uint8], size: int, aspect: Aspect = "crop") -> NDArray[np.uint8]:
    """Return an image [H, W, C] as a new one of [size, size, C], area-averaged.

    Every pixel is the mean color of the area that it covers, also at fractions of input pixels, rounded half up.
    """
    check_resize(size, aspect)
    if image.dtype != np.uint8 or image.ndim != 3 or 0 in image.shape:
        raise ValueError(
            f"invalid image: expected uint8 of height, width and channels, got {image.dtype} of shape {image.shape}"
        )
    image = _fit_window(image, aspect)
    height, width, channels = image.shape
    if height == width == size:
        return image.copy()
    # Exact in float32 up to 65,793 rows, whose sums are below 2^24; the sums of these sums need float64.
    rows = _sum_windows(image.reshape(height, -1), size, np.float32)  # [size, W * C]
    columns = rows.reshape(size, width, channels).transpose(1, 0, 2).reshape(width, -1)  # [W, size * C]
    sums = _sum_windows(columns, size, np.float64).reshape(size, size, channels).transpose(1, 0, 2)  # [size, size, C]
    total = _reduce_ratio(height, size)[0] * _reduce_ratio(width, size)[0]  # sum of the weights of a pixel
    return ((sums.astype(np.int64) + total // 2) // total).astype(np.uint8)


def check_resize(size: int, aspect: Aspect) -> None:
    """Raise `ValueError` unless `size` and `aspect` are valid."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"invalid image_size: expected an integer of at least 1, got {size!r}")
    if aspect not in get_args(Aspect):
        raise ValueError(f"invalid aspect: expected {', '.join(get_args(Aspect))}, got {aspect!r}")


def convert_channels(image: Any, channels: Channels = "rgb", *, channels_first: bool = False) -> Any:
    """Return an image as height x width x RGB; anything but an array of three axes unchanged."""
    if not isinstance(image, np.ndarray) or image.ndim != 3:
        return image
    image = image.transpose(1, 2, 0) if channels_first else image
    return image[..., ::-1] if channels == "bgr" and image.shape[2] == 3 else image


def _fit_window(image: NDArray[np.uint8], aspect: Aspect) -> NDArray[np.uint8]:
    """Return the part of an image that is resized: a square, unless it is stretched."""
    height, width, channels = image.shape
    if aspect == "stretch" or height == width:
        return image
    if aspect == "crop":
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        return image[top : top + side, left : left + side]
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    window = np.zeros((side, side, channels), np.uint8)
    window[top : top + height, left : left + width] = image
    return window


def _sum_windows(pixels: NDArray[Any], size: int, dtype: type[np.floating[Any]]) -> NDArray[Any]:
    """Return the weighted sums [size, K] of the rows [N, K] that each output row covers."""
    sums = np.empty((size, pixels.shape[1]), dtype)
    for row, (start, weights) in zip(sums, _list_windows(len(pixels), size), strict=True):
        np.dot(weights.astype(dtype), pixels[start : start + len(weights)].astype(dtype), out=row)
    return sums


@lru_cache(maxsize=64)
def _list_windows(count: int, size: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the first row and the row weights of each of `size` windows over `count` rows.

    In units of 1/m of a row all overlaps are integers, and those of a window sum to n.
    """
    n, m = _reduce_ratio(count, size)
    windows = []
    for start in range(0, size * n, n):
        rows = np.arange(start // m, -(-(start + n) // m))
        overlaps = np.minimum(start + n, (rows + 1) * m) - np.maximum(start, rows * m)
        windows.append((int(rows[0]), overlaps))
    return windows


def _reduce_ratio(count: int, size: int) -> tuple[int, int]:
    """Return `count` / `size` in lowest terms."""
    return count // gcd(count, size), size // gcd(count, size)
