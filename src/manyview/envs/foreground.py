"""Background removed: the picture of a camera where the thing is, one colour elsewhere.

A derived view is never stored as pixels. Its bits together with its camera's picture give it back exactly: where a
foreground pixel happens to have the colour of the fill, either bit gives the same picture.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]  # [..., H, ceil(W / 8)]


def remove_background(
    picture: NDArray[np.uint8], foreground: NDArray[np.bool_], fill: Sequence[int]
) -> NDArray[np.uint8]:
    """`picture` [..., H, W, C] where `foreground` [..., H, W] is set, `fill` elsewhere."""
    return np.where(foreground[..., None], picture, np.asarray(fill, np.uint8))


def foreground(view: NDArray[np.uint8], fill: Sequence[int]) -> NDArray[np.bool_]:
    """Which pixels [..., H, W] of a derived view [..., H, W, C] are not the fill."""
    # Channel by channel: numpy is slow at reducing a short last axis.
    shown: NDArray[np.bool_] = view[..., 0] != fill[0]
    for channel in range(1, view.shape[-1]):
        shown |= view[..., channel] != fill[channel]
    return shown


def to_bits(view: NDArray[np.uint8], fill: Sequence[int]) -> Bits:
    """Which pixels of a derived view [..., H, W, C] are not the fill, packed eight to a byte."""
    return np.packbits(foreground(view, fill), axis=-1)


def from_bits(picture: NDArray[np.uint8], bits: Bits, fill: Sequence[int]) -> NDArray[np.uint8]:
    """The derived view of a camera's `picture` [..., H, W, C]."""
    foreground = np.unpackbits(bits, axis=-1, count=picture.shape[-2]).view(np.bool_)
    return remove_background(picture, foreground, fill)
