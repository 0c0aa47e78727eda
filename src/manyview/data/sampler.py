"""Batches of a replay, drawn by a counter: batch `i` is the same whenever and wherever it is made."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from manyview.data.batch import Batch
from manyview.data.n_step import count_reserve_steps, min_capacity, sample_windows
from manyview.data.replay_buffer import ReplayBuffer
from manyview.utils.json_io import is_count

CPU = torch.device("cpu")


class Sampler:
    """`sample()` gives a batch; with `prefetch` the one after it is made meanwhile, in a thread.

    A batch is drawn from what the replay held when the batch before it was taken, with or without `prefetch`: so making
    it early does not change it. Should so much be added before the next one is taken that this is being overwritten
    (`windows.count_reserve_steps`), the latest multiple of that many steps counts; a batch made too early is remade.
    Steps may be added while a batch is made, from one thread.

    The pictures of a batch on the CPU lie in memory that is used again: they are good until `sample()` is called again.
    For a CUDA `device` that memory is pinned and the batch is a copy on the device, which is the caller's.

    Its whole state is `num_sampled` and `horizon`; the seed and the rest are given anew.
    """

    def __init__(
        self,
        replay: ReplayBuffer,
        *,
        batch_size: int,
        n_step: int,
        discount: float,
        seed: int,
        prefetch: bool = False,
        device: torch.device = CPU,
    ) -> None:
        if batch_size < 1 or n_step < 1:
            raise ValueError(f"batch_size and n_step must be at least 1, got {batch_size} and {n_step}")
        if not 0 <= discount <= 1:
            raise ValueError(f"discount must be from 0 to 1, got {discount}")
        required = min_capacity(frame_stack=replay.frame_stack, n_step=n_step)
        if replay.capacity < required:
            raise ValueError(
                f"windows of {n_step} steps with stacks of {replay.frame_stack} frames need a replay of at least "
                f"{required} steps, got {replay.capacity}"
            )
        self._replay, self._batch_size, self._seed, self._device = replay, batch_size, seed, device
        self._offsets, self._discounts = np.arange(n_step), discount ** np.arange(n_step + 1)
        self._reserve_steps = count_reserve_steps(replay.capacity)
        self.num_sampled = 0
        """How many batches were taken."""
        self.horizon = 0
        """How many steps the replay had when the last one was taken."""
        self._prefetcher = ThreadPoolExecutor(1, thread_name_prefix="sampler") if prefetch else None
        self._next_views_executor = ThreadPoolExecutor(1, thread_name_prefix="sampler")
        self._pending: _Pending | None = None
        self._buffers = [_BatchBuffers(replay, batch_size, device) for _ in range(2 if prefetch else 1)]

    def sample(self) -> Batch:
        """The next batch."""
        if self.num_sampled == 0:
            self.horizon = self._replay.inserted
        while True:
            horizon = self._compute_horizon()
            batch = self._take_batch(horizon)
            if horizon == self._compute_horizon():  # otherwise another thread has been adding faster than we read
                break
        batch = self._buffers[self.num_sampled % len(self._buffers)].to_device(batch, self._device)
        self.num_sampled += 1
        self.horizon = self._replay.inserted
        if self._prefetcher is not None:
            batch_ahead = self._prefetcher.submit(self._make_batch, self.num_sampled, self.horizon)
            self._pending = _Pending(self.horizon, batch_ahead)
        return batch

    def get_state(self) -> dict[str, int]:
        return {"drawn": self.num_sampled, "horizon": self.horizon}

    def load_state(self, state: dict[str, int]) -> None:
        """Go on from a state, on a replay that has been brought to its own."""
        drawn, horizon = state["drawn"], state["horizon"]
        if not (is_count(drawn) and is_count(horizon) and horizon <= self._replay.inserted):
            raise ValueError(
                f"{drawn!r} batches, drawn from {horizon!r} steps of a replay that has {self._replay.inserted}"
            )
        self._drop_pending()
        self.num_sampled, self.horizon = drawn, horizon

    def close(self) -> None:
        """End the threads; there are no further batches."""
        self._drop_pending()
        if self._prefetcher is not None:
            self._prefetcher.shutdown()
        self._next_views_executor.shutdown()

    def _compute_horizon(self) -> int:
        """Nothing that was drawn with this horizon has been overwritten yet."""
        added = self._replay.inserted - self.horizon
        return self.horizon + added // self._reserve_steps * self._reserve_steps

    def _take_batch(self, horizon: int) -> Batch:
        pending = self._pending
        if pending is not None and pending.horizon == horizon:
            self._pending = None
            return pending.batch.result()
        self._drop_pending()
        return self._make_batch(self.num_sampled, horizon)

    def _drop_pending(self) -> None:
        """Let the pending batch become ready, for its memory, and drop it with whatever it has met."""
        if self._pending is not None:
            self._pending.batch.exception()
            self._pending = None

    def _make_batch(self, index: int, horizon: int) -> Batch:
        replay, offsets = self._replay, self._offsets
        buffers = self._buffers[index % len(self._buffers)].wait_until_free()
        rng = np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, 0, index]))
        starts, length = sample_windows(replay, rng, count=self._batch_size, n_step=len(offsets), horizon=horizon)
        steps = replay.steps.take((starts[:, None] + offsets) % replay.capacity)  # [B, n]
        in_window = offsets < length[:, None]
        reward = (np.where(in_window, steps["reward"], 0) * self._discounts[:-1]).sum(1)
        ended = (in_window & steps["terminated"]).any(1)
        # Both halves at once: numpy lets go of the interpreter while it copies.
        next_stacks = self._next_views_executor.submit(replay.stack_frames, starts + length, out=buffers.next_views)
        views, mask = replay.stack_frames(starts, out=buffers.views)
        next_views, next_mask = next_stacks.result()
        return Batch(
            views=torch.from_numpy(views),
            mask=_to_tensor(mask),
            action=_to_tensor(steps["action"][:, 0]),
            reward_ext=_to_tensor(reward.astype(np.float32)),
            discount=_to_tensor(np.where(ended, 0, self._discounts[length]).astype(np.float32)),
            next_views=torch.from_numpy(next_views),
            next_mask=_to_tensor(next_mask),
            indices=_to_tensor(starts),
        )


class _Pending(NamedTuple):
    horizon: int
    batch: "Future[Batch]"


class _BatchBuffers:
    """Where the pictures of a batch are put together. Fresh memory each time would cost as much as the copying."""

    def __init__(self, replay: ReplayBuffer, rows: int, device: torch.device) -> None:
        self.views, self.next_views = replay.allocate_stacks(rows), replay.allocate_stacks(rows)
        if device.type == "cuda":
            self.views, self.next_views = (_allocate_pinned(room) for room in (self.views, self.next_views))
        self._copied: torch.cuda.Event | None = None

    def to_device(self, batch: Batch, device: torch.device) -> Batch:
        """The batch, on its way to the device if it has to go there."""
        if device.type == "cpu":
            return batch
        batch = batch.to(device)
        if device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(device))
        return batch

    def wait_until_free(self) -> "_BatchBuffers":
        """Ready for the next batch: copies to the device run behind our back."""
        if self._copied is not None:
            self._copied.synchronize()
        return self


def _allocate_pinned(like: NDArray[np.uint8]) -> NDArray[Any]:
    return torch.empty(like.shape, dtype=torch.uint8, pin_memory=True).numpy()


def _to_tensor(part: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(part))
