"""Derived views, as bits and made again of their camera's pixels; many frames at a time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pack_bits(foreground: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The pixels [..., H, W] that a derived view shows, eight to a byte, row after row: [..., H * W / 8]."""
    return np.packbits(foreground.reshape(*foreground.shape[:-2], -1), axis=-1)


def apply_bits(
    images: NDArray[np.uint8], bits: NDArray[np.uint8], fill: Sequence[int], *, out: NDArray[np.uint8]
) -> None:
    """`images` [N, C, H * W] where `bits` [N, H * W / 8] are set, `fill` elsewhere, written to `out`."""
    # All bits in one row: numpy unpacks them faster than along an axis. The last byte of a frame may be part empty.
    foreground = np.unpackbits(bits).reshape(len(bits), 1, -1)[..., : images.shape[2]]
    # Multiplying by 0 and 1 is what numpy does fastest here; its masked copies take a hundred times as long.
    if not any(fill):
        np.multiply(images, foreground, out=out)
        return
    colour = np.array(fill, np.uint8)[:, None]
    np.bitwise_xor(images, colour, out=out)
    out *= foreground
    out ^= colour


def flatten_pixels(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pictures [..., C, H, W] as the [N, C, H * W] of `apply_bits`."""
    return frames.reshape(-1, frames.shape[-3], frames.shape[-2] * frames.shape[-1])
