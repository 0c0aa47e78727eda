"""Frame stack of one view or state vector, shared by environments and policies."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def append_frame(stack: NDArray[Any] | None, frame: NDArray[Any] | None, stack_size: int) -> NDArray[Any] | None:
    """Return the stack of the last `stack_size` frames along the first axis, oldest first, as a new array.

    A stack never spans an absent frame (None): the first frame after it is repeated in place of the older ones.

    Args:
        stack: [stack_size * N, ...] so far; None at the start of an episode or after an absent frame.
        frame: [N, ...], the newest frame.
        stack_size: Number of frames.

    """
    if frame is None:
        return None
    if stack is None:
        return np.concatenate([frame] * stack_size)
    appended, size = np.empty_like(stack), len(frame)
    appended[:-size] = stack[size:]
    appended[-size:] = frame
    return appended
