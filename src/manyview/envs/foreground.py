"""Foreground views: a camera's image with the background replaced by one color.

A foreground view is never stored as pixels. Its mask bits and its camera's image reconstruct it exactly: where a
foreground pixel has the fill color, both values of the bit give the same pixel.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def remove_background(
    image: NDArray[np.uint8], foreground: NDArray[np.bool_], fill: Sequence[int]
) -> NDArray[np.uint8]:
    """Replace the background of an image by `fill`.

    `image` is [..., H, W, C]; `foreground` [..., H, W] is True where the image is kept.
    """
    return np.where(foreground[..., None], image, np.asarray(fill, np.uint8))


def extract_foreground_mask(view: NDArray[np.uint8], fill: Sequence[int]) -> NDArray[np.bool_]:
    """Return the pixels of a derived view that are not the fill.

    `view` is [..., H, W, C], the result [..., H, W].
    """
    # Channel by channel: numpy reduces a short last axis slowly.
    mask: NDArray[np.bool_] = view[..., 0] != fill[0]
    for channel in range(1, view.shape[-1]):
        mask |= view[..., channel] != fill[channel]
    return mask
