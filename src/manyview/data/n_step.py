"""Which n-step windows there are in a replay, and a uniform draw of them.

A window begins at a step where something was done. It goes on for n steps, or to the last observation of its episode if
that comes first. `horizon` is how many steps the replay had at some moment: what came later is not looked at, so that
the same windows are drawn whether or not more has been added since.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.data.replay_buffer import ReplayBuffer

RESERVE_STEPS = 1024
RESERVE_DIVISOR = 64
MAX_ROUNDS = 64
"""If so many draws do not hit enough windows, they are rare, and a list of all of them is drawn from instead."""
SCAN_BLOCK = 2**16


class Windows(NamedTuple):
    start: NDArray[np.int64]
    length: NDArray[np.int64]

    def concat(self, other: "Windows") -> "Windows":
        return Windows(*(np.concatenate(parts) for parts in zip(self, other, strict=True)))


def count_reserve_steps(capacity: int) -> int:
    """Return how many steps may be added before `sample_windows` loses a row: a 64th of the ring, at most 1024."""
    return max(1, min(RESERVE_STEPS, capacity // RESERVE_DIVISOR))


def min_capacity(*, frame_stack: int, n_step: int) -> int:
    """The smallest ring in which windows are found when it is full."""
    capacity = frame_stack + n_step
    while capacity < count_reserve_steps(capacity) + frame_stack + n_step:
        capacity += 1
    return capacity


def find_oldest_start(replay: ReplayBuffer, horizon: int) -> int:
    """The first step that a window may begin at: its whole stack stays while the reserve is filled."""
    oldest_kept = horizon + count_reserve_steps(replay.capacity) - replay.capacity
    return 0 if oldest_kept <= 0 else oldest_kept + replay.frame_stack - 1


def compute_lengths(replay: ReplayBuffer, starts: NDArray[np.int64], *, n_step: int, horizon: int) -> NDArray[np.int64]:
    """How many steps the windows that begin at `starts` have; 0 where none begins."""
    ahead = starts[:, None] + np.arange(n_step)
    stops = np.ones((len(starts), n_step + 1), np.bool_)
    # Of the newest observation nobody knows yet whether its episode goes on.
    stops[:, :-1] = ~replay.steps.take(ahead % replay.capacity)["acted"] | (ahead >= horizon - 1)
    length = stops.argmax(1)
    return np.where((length == n_step) | (starts + length < horizon - 1), length, 0)


def sample_windows(replay: ReplayBuffer, rng: np.random.Generator, *, count: int, n_step: int, horizon: int) -> Windows:
    """`count` windows, each as likely as any other, with repetition."""
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
            f"there is no window of up to {n_step} steps among the {max(0, horizon - oldest)} steps of the replay "
            "that can be sampled: add more steps first"
        )
    chosen = rng.integers(len(all_windows.start), size=count - len(windows.start))
    return windows.concat(Windows(all_windows.start[chosen], all_windows.length[chosen]))


def _select_windows(replay: ReplayBuffer, starts: NDArray[np.int64], *, n_step: int, horizon: int) -> Windows:
    """Those that begin at one of these steps."""
    length = compute_lengths(replay, starts, n_step=n_step, horizon=horizon)
    return Windows(starts[length > 0], length[length > 0])


def _list_windows(replay: ReplayBuffer, oldest: int, *, n_step: int, horizon: int) -> Windows:
    windows = Windows(np.empty(0, np.int64), np.empty(0, np.int64))
    for start in range(oldest, horizon, SCAN_BLOCK):
        candidates = np.arange(start, min(start + SCAN_BLOCK, horizon))
        windows = windows.concat(_select_windows(replay, candidates, n_step=n_step, horizon=horizon))
    return windows
