"""What the replay costs: sampling, inserting, shifting; and the same work done bare by numpy, DrQ-v2 and TorchRL.

    python -m benchmarks.sampling                 # everything
    python -m benchmarks.sampling sizes peers     # some of it

The sides of a comparison take turns, and the median of each counts. A batch is made by two threads: leave them two
cores.
"""

import argparse
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.memory import keep_freed_memory
from benchmarks.update import side_by_side
from manyview.data import Replay, Sampler
from manyview.data.shift import shift
from manyview.envs import MASK, View
from manyview.envs.foreground import remove_background
from manyview.envs.views import Observation

BATCH, STACK, N_STEP, EPISODE_STEPS = 256, 3, 3, 500
SIZE = 84
SMALL_SIZE = 8


def three_views(size: int = SIZE) -> tuple[View, ...]:
    """Two cameras, and the first one with its background removed."""
    return View("side", size, size), View("back", size, size), View("cut", size, size, foreground_of="side")


def full_replay(*, capacity: int, size: int = SIZE) -> Replay:
    """Full of one noisy picture a slot, in episodes; written past `add`, which would take minutes for millions."""
    rng = np.random.default_rng(0)
    replay = Replay(three_views(size), action_shape=(6,), capacity=capacity, frame_stack=STACK)
    for ring in replay.frames:
        ring[:] = rng.integers(256, size=(1, *ring.shape[1:]), dtype=np.uint8)
        ring.reshape(capacity, -1)[:, 0] = np.arange(capacity)
    place = np.arange(capacity) % EPISODE_STEPS
    replay.steps["mask"] = True
    replay.steps["age"] = np.minimum(place, 255)[:, None]
    replay.steps["acted"] = place < EPISODE_STEPS - 1
    replay.load_state({"inserted": capacity, "capacity": capacity})
    return replay


def sampler_of(replay: Replay) -> Sampler:
    return Sampler(replay, batch_size=BATCH, n_step=N_STEP, discount=0.99, seed=0)


class BareTake:
    """As many bytes of the same frames by `numpy.take`, as if all three views were kept as pixels."""

    def __init__(self, replay: Replay) -> None:
        side, back, _ = replay.frames
        self._rings = [side, back, side.copy()]
        self._out = [replay.new_stacks(BATCH) for _ in range(2)]
        self._rng = np.random.default_rng(0)
        self._back = np.arange(1 - STACK, 1)

    def __call__(self) -> None:
        starts = self._rng.integers(STACK, len(self._rings[0]) - N_STEP, size=BATCH)
        for numbers, out in zip((starts, starts + N_STEP), self._out, strict=True):
            index = numbers[:, None] + self._back
            for ring, stacks in zip(self._rings, out, strict=True):
                ring.take(index, axis=0, out=stacks, mode="clip")  # numpy's fastest way


def against_take(*, capacity: int = 10_000, rounds: int = 40) -> tuple[float, float]:
    """Seconds of a batch, and of a bare take of the same bytes."""
    replay = full_replay(capacity=capacity)
    ours, bare = side_by_side(sampler_of(replay).next, BareTake(replay), rounds=rounds)
    return ours, bare


def against_size(*, large: int = 5_000_000, small: int = 50_000, rounds: int = 400) -> tuple[float, float]:
    """Seconds of a batch from a large and from a small ring, of frames so small that 5 million steps are 2 GB."""
    replays = [full_replay(capacity=capacity, size=SMALL_SIZE) for capacity in (large, small)]
    one, other = side_by_side(*(sampler_of(replay).next for replay in replays), rounds=rounds)
    return one, other


def inserting(*, steps: int = 500, rounds: int = 10) -> float:
    """Seconds to add a step, checks included."""
    rng = np.random.default_rng(0)
    frames = [_frame(rng) for _ in range(steps)]
    replay = Replay(three_views(), action_shape=(6,), capacity=2000, frame_stack=STACK)
    observations = [_stacked(frames[max(0, step - STACK + 1) : step + 1]) for step in range(steps)]
    action = np.zeros(6, np.float32)

    def episode() -> None:
        replay.begin(observations[0])
        for observation in observations[1:]:
            replay.add(action, 0.0, False, observation)

    return side_by_side(episode, rounds=rounds)[0] / steps


def _frame(rng: np.random.Generator) -> dict[str, Any]:
    side, back = (rng.integers(256, size=(SIZE, SIZE, 3), dtype=np.uint8) for _ in range(2))
    return {"side": side, "back": back, "cut": remove_background(side, rng.random((SIZE, SIZE)) < 0.2, (0, 0, 0))}


def _stacked(frames: list[dict[str, Any]]) -> Observation:
    """As `FrameStack` gives it: channels first in memory."""
    frames = [frames[0]] * (STACK - len(frames)) + frames
    pictures = {
        name: np.ascontiguousarray(
            np.concatenate([frame[name].transpose(2, 0, 1) for frame in frames]),
        ).transpose(1, 2, 0)
        for name in ("side", "back", "cut")
    }
    return {**pictures, MASK: np.ones(3, np.int8)}


def drqv2_shift(images: Tensor, moves: Tensor, pixels: int) -> Tensor:
    """DrQ-v2's random shift from its definition: pad by repeating the border, then interpolate at a moved grid.

    `images` [N, C, H, H] float, `moves` [2, N] from -pixels to pixels: down, right.
    """
    count, _, size, _ = images.shape
    padded = size + 2 * pixels
    wide = F.pad(images, (pixels,) * 4, mode="replicate")
    line = torch.linspace(1 / padded - 1, 1 - 1 / padded, padded)[:size]  # the centres of the first pixels
    down, right = (moves + pixels) * 2 / padded
    grid = torch.empty(count, size, size, 2)
    grid[..., 0] = line + right[:, None, None]
    grid[..., 1] = line[:, None] + down[:, None, None]
    return F.grid_sample(wide, grid, padding_mode="zeros", align_corners=False)


def shifting(*, images: int = 3 * BATCH, rounds: int = 3) -> tuple[float, float]:
    """Seconds to shift a batch of three views by slices, and by `grid_sample` on floats."""
    views = torch.randint(256, (images, 1, 3 * STACK, SIZE, SIZE), dtype=torch.uint8)
    moves = torch.randint(-4, 5, (2, images, 1))
    ours, theirs = side_by_side(
        lambda: shift(views, moves),
        lambda: drqv2_shift(views.flatten(0, 1).float(), moves.flatten(1), 4),
        rounds=rounds,
    )
    return ours, theirs


def torchrl_sampling(*, capacity: int = 10_000, rounds: int = 5) -> float:
    """Seconds in which TorchRL's buffer gives the same: single frames, and windows cut into the two stacks."""
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

    names = ("side", "back", "cut")
    pictures = {name: torch.randint(256, (capacity, 3, SIZE, SIZE), dtype=torch.uint8) for name in names}
    small = {"action": torch.rand(capacity, 6), "reward": torch.rand(capacity)}
    steps = TensorDict({**pictures, **small, "episode": torch.arange(capacity) // EPISODE_STEPS}, batch_size=[capacity])
    window = STACK + N_STEP
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=SliceSampler(slice_len=window, traj_key="episode"),
        batch_size=BATCH * window,
    )
    buffer.extend(steps)

    def sample() -> tuple[Tensor, Tensor]:
        windows = buffer.sample().view(BATCH, window)
        frames = torch.stack([windows[name] for name in names], dim=1)  # [B, V, window, 3, H, W]
        return frames[:, :, :STACK].flatten(2, 3), frames[:, :, N_STEP:].flatten(2, 3)

    return side_by_side(sample, rounds=rounds)[0]


def print_take() -> None:
    ours, bare = against_take()
    print(f"a batch of {BATCH} x 3 views: {ours * 1e3:.1f} ms, bare take {bare * 1e3:.1f} ms, ratio {ours / bare:.3f}")


def print_sizes() -> None:
    large, small = against_size()
    print(f"from 5M steps {large * 1e3:.2f} ms, from 50k steps {small * 1e3:.2f} ms, ratio {large / small:.3f}")


def print_insert() -> None:
    print(f"adding a step: {inserting() * 1e6:.0f} us")


def print_shift() -> None:
    ours, theirs = shifting()
    print(f"random shift: {ours * 1e3:.1f} ms, grid_sample {theirs * 1e3:.1f} ms, ratio {theirs / ours:.1f}")


def print_peers() -> None:
    try:
        print(f"TorchRL, the same windows: {torchrl_sampling() * 1e3:.1f} ms")
    except ModuleNotFoundError as missing:
        print(f"TorchRL: not installed ({missing.name})")


PARTS = {"take": print_take, "sizes": print_sizes, "insert": print_insert, "shift": print_shift, "peers": print_peers}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], help="what to measure; everything if nothing is named"
    )
    asked = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    for part in asked.parts or PARTS:
        PARTS[part]()
