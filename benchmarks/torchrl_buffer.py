"""TorchRL's replay buffer on the work of `benchmarks.sampling`, built in two ways from its parts.

Both get an advantage: all views share one tensor, and trajectories are looked up once, as if none were added.
"""

import logging
from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

CHUNK = 250
Sample = Callable[[], tuple[Tensor, ...]]


def make_frame_sampler(
    *, capacity: int, batch: int, views: int, size: int, stack: int, n_step: int, episode_steps: int
) -> Sample:
    """Store each frame once, as our buffer does; `SliceSampler` draws windows, which are split into the two stacks."""
    window = stack + n_step
    buffer = _make_buffer(
        capacity, batch * window, SliceSampler(slice_len=window, traj_key="episode", cache_values=True)
    )
    for start in range(0, capacity, CHUNK):
        episode = torch.arange(start, start + CHUNK) // episode_steps
        buffer.extend(_make_steps({"frames": _make_noise(views, 3, size, size), "episode": episode}))
    discounts = 0.99 ** torch.arange(n_step)

    def sample() -> tuple[Tensor, ...]:
        windows = buffer.sample().view(batch, window)
        frames = windows["frames"].transpose(1, 2)  # [B, V, window, 3, H, W]
        now, later = frames[:, :, :stack].flatten(2, 3), frames[:, :, n_step:].flatten(2, 3)
        reward = (windows["reward"][:, stack - 1 : stack - 1 + n_step] * discounts).sum(1)
        return now, later, windows["action"][:, stack - 1], reward

    return sample


def make_stack_sampler(*, capacity: int, batch: int, views: int, size: int, stack: int) -> Sample:
    """Store both stacks of every transition, as TorchRL's examples do: sampling is one indexing operation."""
    buffer = _make_buffer(capacity, batch, None)
    for _ in range(0, capacity, CHUNK):
        now, later = (_make_noise(views, 3 * stack, size, size) for _ in range(2))
        buffer.extend(_make_steps({"views": now, "next_views": later}))

    def sample() -> tuple[Tensor, ...]:
        drawn = buffer.sample()
        return drawn["views"], drawn["next_views"], drawn["action"], drawn["reward"]

    return sample


def _make_buffer(capacity: int, batch: int, sampler: SliceSampler | None) -> TensorDictReplayBuffer:
    if capacity % CHUNK:
        raise ValueError(f"capacity must be a multiple of {CHUNK}, got {capacity}")
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    options = {} if sampler is None else {"sampler": sampler}
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=batch, **options)


def _make_noise(*shape: int) -> Tensor:
    return torch.randint(256, (CHUNK, *shape), dtype=torch.uint8)


def _make_steps(images: dict[str, Tensor]) -> TensorDict:
    return TensorDict({**images, "action": torch.rand(CHUNK, 6), "reward": torch.rand(CHUNK)}, batch_size=[CHUNK])
