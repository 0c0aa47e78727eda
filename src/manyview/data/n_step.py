"""Uniform sampling of n-step windows, the basis of n-step returns, from a replay buffer.

A window starts at a step with an action. It spans n steps, or fewer up to the last observation of its episode.
`horizon` is the number of steps that the replay buffer had at some moment: later steps are ignored, so that the same
windows are sampled whether or not more steps have been added since.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.data.replay_buffer import ReplayBuffer

RESERVE_STEPS = 1024
"""Upper bound of the reserve: steps that may be overwritten while a batch is assembled."""
RESERVE_DIVISOR = 64
"""The reserve is the capacity divided by this, at most `RESERVE_STEPS`."""
MAX_ROUNDS = 64
"""Rounds of rejection sampling. After that windows are rare, and all of them are listed to sample from."""
SCAN_BLOCK = 2**16
"""Steps that listing all windows reads at a time."""


class Windows(NamedTuple):
    """n-step windows: index of the first step, and number of steps."""

    start: NDArray[np.int64]
    length: NDArray[np.int64]

    def concat(self, other: "Windows") -> "Windows":
        """Return these windows followed by `other`."""
        return Windows(*(np.concatenate(parts) for parts in zip(self, other, strict=True)))


def count_reserve_steps(capacity: int) -> int:
    """Return how many steps may be added before a sampled row is overwritten.

    A 64th of the ring, at least 1 and at most 1024.
    """
    return max(1, min(RESERVE_STEPS, capacity // RESERVE_DIVISOR))


def min_capacity(*, frame_stack: int, n_step: int) -> int:
    """Return the smallest capacity whose full ring contains a window to sample."""
    capacity = frame_stack + n_step
    while capacity < count_reserve_steps(capacity) + frame_stack + n_step:
        capacity += 1
    return capacity


def find_oldest_start(replay: ReplayBuffer, horizon: int) -> int:
    """Return the first step that a window may start at: its stacks outlive the reserve."""
    oldest_kept = horizon + count_reserve_steps(replay.capacity) - replay.capacity
    return 0 if oldest_kept <= 0 else oldest_kept + replay.longest_stack - 1


def compute_lengths(replay: ReplayBuffer, starts: NDArray[np.int64], *, n_step: int, horizon: int) -> NDArray[np.int64]:
    """Return the number of steps of the windows at `starts`, 0 where none starts."""
    indices = starts[:, None] + np.arange(n_step)
    stops = np.ones((len(starts), n_step + 1), np.bool_)
    # The newest step is excluded: it is not known yet whether its episode continues.
    stops[:, :-1] = ~replay.steps.take(indices % replay.capacity)["acted"] | (indices >= horizon - 1)
    length = stops.argmax(1)
    return np.where((length == n_step) | (starts + length < horizon - 1), length, 0)


def sample_windows(replay: ReplayBuffer, rng: np.random.Generator, *, count: int, n_step: int, horizon: int) -> Windows:
    """Sample `count` windows uniformly with replacement. Raises RuntimeError if there is none."""
    oldest = find_oldest_start(replay, horizon)
    windows = Windows(np.empty(0, np.int64), np.empty(0, np.int64))
    for _ in range(MAX_ROUNDS if oldest < horizon else 0):
        candidates = rng.integers(oldest, horizon, size=count + count // 8)  # most are windows
        windows = windows.concat(_select_windows(replay, candidates, n_step=n_step, horizon=horizon))
        if len(windows.start) >= count:
            return Windows(windows.start[:count], windows.length[:count])
    all_windows = _list_windows(replay, oldest, n_step=n_step, horizon=horizon)
    if not len(all_windows.start):
        raise RuntimeError(
            f"no window of up to {n_step} steps among the {max(0, horizon - oldest)} steps of the replay buffer that "
            "can be sampled. Add more steps first."
        )
    sampled = rng.integers(len(all_windows.start), size=count - len(windows.start))
    return windows.concat(Windows(all_windows.start[sampled], all_windows.length[sampled]))


def split_windows(windows: Windows, *, n_step: int) -> tuple[Windows, NDArray[np.int64]]:
    """Return a window of up to `n_step` steps from each step of `windows`, and both its ends' places there, [N, 2]."""
    total = np.repeat(windows.length, windows.length)
    position = np.arange(len(total)) - np.repeat(windows.length.cumsum() - windows.length, windows.length)
    length = np.minimum(n_step, total - position)
    start = np.repeat(windows.start, windows.length) + position
    return Windows(start, length), np.stack([position, position + length], 1)


def _select_windows(replay: ReplayBuffer, starts: NDArray[np.int64], *, n_step: int, horizon: int) -> Windows:
    """Return the windows that start at one of `starts`."""
    length = compute_lengths(replay, starts, n_step=n_step, horizon=horizon)
    return Windows(starts[length > 0], length[length > 0])


def _list_windows(replay: ReplayBuffer, oldest: int, *, n_step: int, horizon: int) -> Windows:
    windows = Windows(np.empty(0, np.int64), np.empty(0, np.int64))
    for start in range(oldest, horizon, SCAN_BLOCK):
        candidates = np.arange(start, min(start + SCAN_BLOCK, horizon))
        windows = windows.concat(_select_windows(replay, candidates, n_step=n_step, horizon=horizon))
    return windows
