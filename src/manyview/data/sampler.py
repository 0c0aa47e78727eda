"""Batches of a replay, drawn by a counter: batch `i` is the same whenever and wherever it is made."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from manyview.data.batch import Batch
from manyview.data.replay import Replay
from manyview.data.windows import draw, least_capacity, reserve_steps
from manyview.utils.json_io import is_count

CPU = torch.device("cpu")


class Sampler:
    """`next()` gives a batch; with `prefetch` the one after it is made meanwhile, in a thread.

    A batch is drawn from what the replay held when the batch before it was taken, with or without `prefetch`: so making
    it early does not change it. Should so much be added before the next one is taken that this is being overwritten
    (`windows.reserve_steps`), the latest multiple of that many steps counts, and a batch made too early is made again.
    Steps may be added while a batch is made, from one thread.

    The pictures of a batch on the CPU lie in memory that is used again: they are good until `next()` is called again.
    For a CUDA `device` that memory is pinned and the batch is a copy on the device, which is the caller's.

    Its whole state is `drawn` and `horizon`; the seed and the rest are given anew.
    """

    def __init__(
        self,
        replay: Replay,
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
        least = least_capacity(frame_stack=replay.frame_stack, n_step=n_step)
        if replay.capacity < least:
            raise ValueError(
                f"windows of {n_step} steps with stacks of {replay.frame_stack} frames need a replay of at least "
                f"{least} steps, got {replay.capacity}"
            )
        self._replay, self._batch_size, self._seed, self._device = replay, batch_size, seed, device
        self._offsets, self._powers = np.arange(n_step), discount ** np.arange(n_step + 1)
        self._reserve_steps = reserve_steps(replay.capacity)
        self.drawn = 0
        """How many batches were taken."""
        self.horizon = 0
        """How many steps the replay had when the last one was taken."""
        self._prefetcher = ThreadPoolExecutor(1, thread_name_prefix="sampler") if prefetch else None
        self._other_half = ThreadPoolExecutor(1, thread_name_prefix="sampler")
        self._pending: _Pending | None = None
        self._desks = [_Desk(replay, batch_size, device) for _ in range(2 if prefetch else 1)]

    def next(self) -> Batch:
        """The next batch."""
        if self.drawn == 0:
            self.horizon = self._replay.inserted
        while True:
            horizon = self._current_horizon()
            batch = self._finished(horizon)
            if horizon == self._current_horizon():  # otherwise another thread has been adding faster than we read
                break
        batch = self._desks[self.drawn % len(self._desks)].handed_over(batch, self._device)
        self.drawn += 1
        self.horizon = self._replay.inserted
        if self._prefetcher is not None:
            batch_ahead = self._prefetcher.submit(self._made, self.drawn, self.horizon)
            self._pending = _Pending(self.horizon, batch_ahead)
        return batch

    def state(self) -> dict[str, int]:
        return {"drawn": self.drawn, "horizon": self.horizon}

    def load_state(self, state: dict[str, int]) -> None:
        """Go on from a state, on a replay that has been brought to its own."""
        drawn, horizon = state["drawn"], state["horizon"]
        if not (is_count(drawn) and is_count(horizon) and horizon <= self._replay.inserted):
            raise ValueError(
                f"{drawn!r} batches, drawn from {horizon!r} steps of a replay that has {self._replay.inserted}"
            )
        self._forget()
        self.drawn, self.horizon = drawn, horizon

    def close(self) -> None:
        """End the threads; there are no further batches."""
        self._forget()
        if self._prefetcher is not None:
            self._prefetcher.shutdown()
        self._other_half.shutdown()

    def _current_horizon(self) -> int:
        """Nothing that was drawn with this horizon has been overwritten yet."""
        added = self._replay.inserted - self.horizon
        return self.horizon + added // self._reserve_steps * self._reserve_steps

    def _finished(self, horizon: int) -> Batch:
        pending = self._pending
        if pending is not None and pending.horizon == horizon:
            self._pending = None
            return pending.batch.result()
        self._forget()
        return self._made(self.drawn, horizon)

    def _forget(self) -> None:
        """Let the pending batch become ready, for its memory, and drop it with whatever it has met."""
        if self._pending is not None:
            self._pending.batch.exception()
            self._pending = None

    def _made(self, number: int, horizon: int) -> Batch:
        replay, offsets = self._replay, self._offsets
        desk = self._desks[number % len(self._desks)].cleared()
        rng = np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, 0, number]))
        starts, length = draw(replay, rng, count=self._batch_size, n_step=len(offsets), horizon=horizon)
        steps = replay.steps.take((starts[:, None] + offsets) % replay.capacity)  # [B, n]
        inside = offsets < length[:, None]
        reward = (np.where(inside, steps["reward"], 0) * self._powers[:-1]).sum(1)
        ended = (inside & steps["terminated"]).any(1)
        # Both halves at once: numpy lets go of the interpreter while it copies.
        later = self._other_half.submit(replay.stacks, starts + length, out=desk.next_views)
        views, mask = replay.stacks(starts, out=desk.views)
        next_views, next_mask = later.result()
        return Batch(
            views=torch.from_numpy(views),
            mask=_tensor(mask),
            action=_tensor(steps["action"][:, 0]),
            reward_ext=_tensor(reward.astype(np.float32)),
            discount=_tensor(np.where(ended, 0, self._powers[length]).astype(np.float32)),
            next_views=torch.from_numpy(next_views),
            next_mask=_tensor(next_mask),
            rows=_tensor(starts),
        )


class _Pending(NamedTuple):
    horizon: int
    batch: "Future[Batch]"


class _Desk:
    """Where the pictures of a batch are put together. Fresh memory each time would cost as much as the copying."""

    def __init__(self, replay: Replay, rows: int, device: torch.device) -> None:
        self.views, self.next_views = replay.new_stacks(rows), replay.new_stacks(rows)
        if device.type == "cuda":
            self.views, self.next_views = (_pinned(room) for room in (self.views, self.next_views))
        self._leaving: torch.cuda.Event | None = None

    def handed_over(self, batch: Batch, device: torch.device) -> Batch:
        """The batch, on its way to the device if it has to go there."""
        if device.type == "cpu":
            return batch
        batch = batch.to(device)
        if device.type == "cuda":
            self._leaving = torch.cuda.Event()
            self._leaving.record(torch.cuda.current_stream(device))
        return batch

    def cleared(self) -> "_Desk":
        """Ready for the next batch: copies to the device run behind our back."""
        if self._leaving is not None:
            self._leaving.synchronize()
        return self


def _pinned(room: NDArray[np.uint8]) -> NDArray[Any]:
    return torch.empty(room.shape, dtype=torch.uint8, pin_memory=True).numpy()


def _tensor(part: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(part))
