"""Time the replay buffer (sampling, inserting, shifting) against numpy, DrQ-v2 and TorchRL on the same work.

    python -m benchmarks.sampling                 # all parts, in about a minute
    python -m benchmarks.sampling batch           # selected parts: batch, sizes, insert, shift
    python -m benchmarks.sampling --size 64       # smaller images

The sides of a comparison alternate, and the median of each counts. Two threads make a batch, and torch uses all cores:
leave two cores idle, or the ratios are distorted.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from manyview.data import ReplayBuffer, Sampler
from manyview.data.batch_augmentation import shift_views
from manyview.envs import View
from manyview.envs.foreground import remove_background
from manyview.envs.views import Observation
from manyview.training.update_benchmark import time_alternating
from manyview.utils.resources import keep_freed_memory

BATCH, STACK, N_STEP, EPISODE_STEPS = 256, 3, 3, 500
SIZE = 84
TINY_SIZE = 8


def make_views(size: int = SIZE) -> tuple[View, ...]:
    """Return two cameras, and the first one with its background removed."""
    return View("side", size, size), View("back", size, size), View("cut", size, size, derived_from="side")


def make_full_replay(*, capacity: int, size: int = SIZE) -> ReplayBuffer:
    """Return a replay buffer full of noise images in episodes, filled directly: `add` takes minutes for millions."""
    rng = np.random.default_rng(0)
    replay = ReplayBuffer(make_views(size), action_shape=(6,), capacity=capacity, frame_stack=STACK)
    for ring in replay.frames:
        ring[:] = rng.integers(256, size=(1, *ring.shape[1:]), dtype=np.uint8)
        ring.reshape(capacity, -1)[:, 0] = np.arange(capacity)
    place = np.arange(capacity) % EPISODE_STEPS
    replay.steps["mask"] = True
    replay.steps["age"] = np.minimum(place, 255)[:, None]
    replay.steps["acted"] = place < EPISODE_STEPS - 1
    replay.inserted = capacity
    return replay


def make_sampler(replay: ReplayBuffer) -> Sampler:
    return Sampler(replay, batch_size=BATCH, n_step=N_STEP, discount=0.99, seed=0)


class BareTake:
    """Read as many bytes of the same frames by `numpy.take`, as if all three views were stored as pixels."""

    def __init__(self, replay: ReplayBuffer) -> None:
        side, back, _ = replay.frames
        self._rings = [side, back, side.copy()]
        self._out = [replay.allocate_stacks(BATCH) for _ in range(2)]
        self._rng = np.random.default_rng(0)
        self._back = np.arange(1 - STACK, 1)

    def __call__(self) -> None:
        starts = self._rng.integers(STACK, len(self._rings[0]) - N_STEP, size=BATCH)
        for numbers, out in zip((starts, starts + N_STEP), self._out, strict=True):
            index = numbers[:, None] + self._back
            for ring, stacks in zip(self._rings, out, strict=True):
                ring.take(index, axis=0, out=stacks, mode="clip")  # the fastest mode of numpy


def time_against_take(*, capacity: int = 10_000, rounds: int = 20) -> tuple[float, float]:
    """Return the seconds of a batch and of a bare take of the same bytes."""
    replay = make_full_replay(capacity=capacity)
    ours, bare = time_alternating(make_sampler(replay).sample, BareTake(replay), rounds=rounds)
    return ours, bare


def time_against_size(*, large: int = 5_000_000, small: int = 50_000, rounds: int = 300) -> tuple[float, float]:
    """Return the seconds of a batch from a large and a small ring, with tiny frames: 5 million steps are 2 GB."""
    replays = [make_full_replay(capacity=capacity, size=TINY_SIZE) for capacity in (large, small)]
    large_s, small_s = time_alternating(*(make_sampler(replay).sample for replay in replays), rounds=rounds)
    return large_s, small_s


def time_insert(*, size: int = SIZE, steps: int = 500, rounds: int = 5) -> float:
    """Return the seconds to add a step, checks included."""
    rng = np.random.default_rng(0)
    frames = [_make_frame(rng, size) for _ in range(steps)]
    replay = ReplayBuffer(make_views(size), action_shape=(6,), capacity=2000, frame_stack=STACK)
    action = np.zeros(6, np.float32)

    def episode() -> None:
        replay.start_episode(frames[0])
        for frame in frames[1:]:
            replay.add(action, 0.0, False, frame)

    return time_alternating(episode, rounds=rounds)[0] / steps


def _make_frame(rng: np.random.Generator, size: int) -> Observation:
    """Return a random frame of every view, channels first in memory as environments return it."""
    side, back = (rng.integers(256, size=(3, size, size), dtype=np.uint8).transpose(1, 2, 0) for _ in range(2))
    cut = remove_background(side, rng.random((size, size)) < 0.2, (0, 0, 0))
    return {"side": side, "back": back, "cut": cut, "mask": np.ones(3, np.int8)}


def drqv2_shift(images: Tensor, moves: Tensor, pixels: int) -> Tensor:
    """Apply DrQ-v2's random shift by its definition: pad by repeating the border, then interpolate at a moved grid.

    `images` [N, C, H, H] float, `moves` [2, N] from -pixels to pixels: down, right.
    """
    count, _, size, _ = images.shape
    padded = size + 2 * pixels
    wide = F.pad(images, (pixels,) * 4, mode="replicate")
    line = torch.linspace(1 / padded - 1, 1 - 1 / padded, padded)[:size]  # centers of the first pixels
    down, right = (moves + pixels) * 2 / padded
    grid = torch.empty(count, size, size, 2)
    grid[..., 0] = line + right[:, None, None]
    grid[..., 1] = line[:, None] + down[:, None, None]
    return F.grid_sample(wide, grid, padding_mode="zeros", align_corners=False)


def time_shift(*, size: int = SIZE, images: int = 3 * BATCH, rounds: int = 3) -> tuple[float, float]:
    """Return the seconds to shift a batch of three views by slices, and by `grid_sample` on floats."""
    views = torch.randint(256, (images, 1, 3 * STACK, size, size), dtype=torch.uint8)
    moves = torch.randint(-4, 5, (2, images, 1))
    ours, theirs = time_alternating(
        lambda: shift_views(views, moves),
        lambda: drqv2_shift(views.flatten(0, 1).float(), moves.flatten(1), 4),
        rounds=rounds,
    )
    return ours, theirs


@dataclass(frozen=True)
class Line:
    label: str
    milliseconds: float
    against: float
    kb_per_step: float | None = None


def measure_batch(*, size: int, capacity: int, rounds: int) -> list[Line]:
    """Time a batch of our buffer, of numpy and of TorchRL in alternation."""
    replay = make_full_replay(capacity=capacity, size=size)
    frame = 3 * size * size / 1e3
    sides: list[tuple[str, Callable[[], object], float]] = [
        ("the replay buffer", make_sampler(replay).sample, replay.nbytes / capacity / 1e3),
        ("bare `numpy.take` of as many bytes, one thread", BareTake(replay), 3 * frame),
    ]
    try:
        from benchmarks.torchrl_buffer import make_frame_sampler, make_stack_sampler
    except ModuleNotFoundError as missing:
        print(f"TorchRL skipped: {missing.name} is not installed (it is in the extra `dev`)")
    else:
        work = {"batch": BATCH, "views": 3, "size": size, "stack": STACK}
        windows = make_frame_sampler(capacity=capacity, n_step=N_STEP, episode_steps=EPISODE_STEPS, **work)
        sides.append(("TorchRL, single frames, windows by `SliceSampler`", windows, 3 * frame))
        stacks = make_stack_sampler(capacity=capacity // 4, **work)
        sides.append(("TorchRL, both stacks of every transition", stacks, 2 * STACK * 3 * frame))
    seconds = time_alternating(*(work for _, work, _ in sides), rounds=rounds)
    return [
        Line(label, 1e3 * taken_s, taken_s / seconds[0], kilobytes)
        for (label, _, kilobytes), taken_s in zip(sides, seconds, strict=True)
    ]


def measure_sizes() -> list[Line]:
    large, small = time_against_size()
    return [
        Line("a batch of small images from 50 thousand steps", 1e3 * small, 1),
        Line("the same from 5 million", 1e3 * large, large / small),
    ]


def measure_insert(*, size: int) -> list[Line]:
    return [Line("adding a step, checks included", 1e3 * time_insert(size=size), 1)]


def measure_shift(*, size: int) -> list[Line]:
    ours, theirs = time_shift(size=size)
    return [
        Line(f"random shift of {BATCH} x 3 stacks by slices", 1e3 * ours, 1),
        Line("the same by `grid_sample`", 1e3 * theirs, theirs / ours),
    ]


def print_table(title: str, lines: list[Line]) -> None:
    print(f"\n| {title} | ms | times ours | kB per step |\n|---|---|---|---|")
    for line in lines:
        kilobytes = "" if line.kb_per_step is None else f"{line.kb_per_step:.1f}"
        print(f"| {line.label} | {line.milliseconds:.2f} | {line.against:.2f} | {kilobytes} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("batch", "sizes", "insert", "shift")
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to measure (default: all)")
    parser.add_argument("--size", type=int, default=SIZE, help="height and width of the images")
    parser.add_argument("--capacity", type=int, default=8000, help="steps in the rings of `batch`, a multiple of 1000")
    parser.add_argument("--rounds", type=int, default=15, help="batches of each side")
    args = parser.parse_args()
    if unknown := set(args.parts).difference(parts):
        parser.error(f"unknown PART: expected one of {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    keep_freed_memory()
    print(f"{BATCH} windows of {N_STEP} steps, 3 views of {args.size}x{args.size}, {STACK} frames; ", end="")
    print(f"torch with {torch.get_num_threads()} threads")
    for part in args.parts or parts:
        if part == "batch":
            print_table("a batch", measure_batch(size=args.size, capacity=args.capacity, rounds=args.rounds))
        elif part == "sizes":
            print_table("5 million steps against 50 thousand", measure_sizes())
        elif part == "insert":
            print_table("inserting", measure_insert(size=args.size))
        else:
            print_table("augmentation", measure_shift(size=args.size))


if __name__ == "__main__":
    main()
