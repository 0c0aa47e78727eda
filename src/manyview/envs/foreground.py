"""Background removed: the picture of a camera where the thing is, one colour elsewhere.

A derived view is never stored as pixels. Its bits together with its camera's picture give it back exactly: where a
foreground pixel happens to have the colour of the fill, either bit gives the same picture.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PackedMask = NDArray[np.uint8]  # [..., H, ceil(W / 8)]


def remove_background(
    image: NDArray[np.uint8], foreground: NDArray[np.bool_], fill: Sequence[int]
) -> NDArray[np.uint8]:
    """`image` [..., H, W, C] where `foreground` [..., H, W] is set, `fill` elsewhere."""
    return np.where(foreground[..., None], image, np.asarray(fill, np.uint8))


def extract_foreground_mask(view: NDArray[np.uint8], fill: Sequence[int]) -> NDArray[np.bool_]:
    """Which pixels [..., H, W] of a derived view [..., H, W, C] are not the fill."""
    # Channel by channel: numpy is slow at reducing a short last axis.
    mask: NDArray[np.bool_] = view[..., 0] != fill[0]
    for channel in range(1, view.shape[-1]):
        mask |= view[..., channel] != fill[channel]
    return mask


def pack_foreground(view: NDArray[np.uint8], fill: Sequence[int]) -> PackedMask:
    """Which pixels of a derived view [..., H, W, C] are not the fill, packed eight to a byte."""
    return np.packbits(extract_foreground_mask(view, fill), axis=-1)


def unpack_foreground(image: NDArray[np.uint8], bits: PackedMask, fill: Sequence[int]) -> NDArray[np.uint8]:
    """The derived view of a camera's `image` [..., H, W, C]."""
    foreground = np.unpackbits(bits, axis=-1, count=image.shape[-2]).view(np.bool_)
    return remove_background(image, foreground, fill)
