"""Foreground views: a camera's image with the background replaced by one color.

A foreground view is never stored as pixels. Its mask bits and its camera's image reconstruct it exactly: where a
foreground pixel has the fill color, both values of the bit give the same pixel.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PackedMask = NDArray[np.uint8]  # [..., H, ceil(W / 8)]


def remove_background(
    image: NDArray[np.uint8], foreground: NDArray[np.bool_], fill: Sequence[int]
) -> NDArray[np.uint8]:
    """Return `image` [..., H, W, C] where `foreground` [..., H, W] is set, and `fill` elsewhere."""
    return np.where(foreground[..., None], image, np.asarray(fill, np.uint8))


def extract_foreground_mask(view: NDArray[np.uint8], fill: Sequence[int]) -> NDArray[np.bool_]:
    """Return the mask [..., H, W] of the pixels of a derived view [..., H, W, C] that are not the fill."""
    # Channel by channel: numpy reduces a short last axis slowly.
    mask: NDArray[np.bool_] = view[..., 0] != fill[0]
    for channel in range(1, view.shape[-1]):
        mask |= view[..., channel] != fill[channel]
    return mask


def pack_foreground(view: NDArray[np.uint8], fill: Sequence[int]) -> PackedMask:
    """Return the foreground mask of a derived view [..., H, W, C], packed eight pixels to a byte."""
    return np.packbits(extract_foreground_mask(view, fill), axis=-1)


def unpack_foreground(image: NDArray[np.uint8], bits: PackedMask, fill: Sequence[int]) -> NDArray[np.uint8]:
    """Reconstruct the derived view [..., H, W, C] from its camera's `image` and the packed mask."""
    foreground = np.unpackbits(bits, axis=-1, count=image.shape[-2]).view(np.bool_)
    return remove_background(image, foreground, fill)
