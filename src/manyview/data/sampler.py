"""Sampler of replay batches by counter: batch `i` is the same whenever it is made."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from manyview.data.batch import Batch
from manyview.data.n_step import Windows, count_reserve_steps, min_capacity, sample_windows, split_windows
from manyview.data.neighbors import NeighborSearch, get_feature_rows
from manyview.data.replay_buffer import ReplayBuffer
from manyview.utils.json_io import is_count

CPU = torch.device("cpu")


class Sampler:
    """Uniform sampler of n-step transitions; `prefetch` makes the next batch in a thread.

    A batch is sampled from the steps that the replay buffer had when the previous batch was taken (`horizon`), with or
    without `prefetch`: prefetching does not change it. If `n_step.count_reserve_steps` or more steps are added before
    it is taken, they could overwrite sampled rows: the horizon then advances by a multiple of that number, and a batch
    made for the old horizon is made again. One other thread may add steps while a batch is made.

    A `neighbor_search` sees the same steps, and sets the batch's `neighbor_distances` and `stored_features`.

    With a `sequence_length`, a batch is made of sequences of up to that many consecutive observations of an episode.
    Each of their steps is a row; `batch_size` counts observations, so that a batch has fewer rows.

    On the CPU, the images of a batch are in reused memory: they are valid until the next `sample()`. For a CUDA
    `device` that memory is pinned, and the batch is a copy on the device that belongs to the caller.

    The complete state is `num_sampled` and `horizon`; the arguments, seed included, are not part of it.
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
        neighbor_search: NeighborSearch | None = None,
        sequence_length: int | None = None,
    ) -> None:
        if batch_size < 1 or n_step < 1:
            raise ValueError(f"invalid batch_size or n_step: expected at least 1, got {batch_size} and {n_step}")
        if not 0 <= discount <= 1:
            raise ValueError(f"invalid discount: expected 0 to 1, got {discount}")
        if sequence_length is not None and not 2 <= sequence_length <= batch_size:
            raise ValueError(f"invalid sequence_length: expected 2 to {batch_size} (batch_size), got {sequence_length}")
        window_steps = n_step if sequence_length is None else sequence_length - 1
        required = min_capacity(frame_stack=replay.longest_stack, n_step=window_steps)
        if replay.capacity < required:
            raise ValueError(
                f"replay buffer is too small: expected a capacity of at least {required} steps for windows of "
                f"{window_steps} steps and stacks of {replay.longest_stack}, got {replay.capacity}"
            )
        self._sequence_length = sequence_length
        self._replay, self._batch_size, self._seed, self._device = replay, batch_size, seed, device
        self._neighbor_search = neighbor_search
        self._offsets, self._discounts = np.arange(n_step), discount ** np.arange(n_step + 1)
        self._reserve_steps = count_reserve_steps(replay.capacity)
        self.num_sampled = 0
        """Number of batches returned."""
        self.horizon = 0
        """Steps in the replay buffer when the last batch was returned."""
        self._prefetcher = ThreadPoolExecutor(1, thread_name_prefix="sampler") if prefetch else None
        self._next_views_executor = ThreadPoolExecutor(1, thread_name_prefix="sampler")
        self._pending: _Pending | None = None
        self._buffers = [_BatchBuffers(replay, batch_size, device) for _ in range(2 if prefetch else 1)]

    def sample(self) -> Batch:
        """Return the next batch."""
        if self.num_sampled == 0:
            self.horizon = self._replay.inserted
        while True:
            horizon = self._compute_horizon()
            batch = self._take_batch(horizon)
            if horizon == self._compute_horizon():  # else another thread added steps faster than this one read them
                break
        batch = self._buffers[self.num_sampled % len(self._buffers)].to_device(batch, self._device)
        self.num_sampled += 1
        self.horizon = self._replay.inserted
        if self._prefetcher is not None:
            batch_ahead = self._prefetcher.submit(self._make_batch, self.num_sampled, self.horizon)
            self._pending = _Pending(self.horizon, batch_ahead)
        return batch

    def get_state(self) -> dict[str, int]:
        """Return the complete state."""
        return {"drawn": self.num_sampled, "horizon": self.horizon}

    def load_state(self, state: dict[str, int]) -> None:
        """Restore a state of `get_state`, after the replay buffer has been restored.

        Raises ValueError if the state is invalid.
        """
        num_sampled, horizon = state["drawn"], state["horizon"]
        if not (is_count(num_sampled) and is_count(horizon) and horizon <= self._replay.inserted):
            raise ValueError(
                f"invalid sampler state: expected counts with a horizon of at most {self._replay.inserted} steps, got "
                f"drawn={num_sampled!r}, horizon={horizon!r}"
            )
        self._drop_pending()
        self.num_sampled, self.horizon = num_sampled, horizon

    def close(self) -> None:
        """Stop the threads; `sample` must not be called afterwards."""
        self._drop_pending()
        if self._prefetcher is not None:
            self._prefetcher.shutdown()
        self._next_views_executor.shutdown()

    def _compute_horizon(self) -> int:
        """Return the horizon of the next batch, none of whose rows can be overwritten yet."""
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
        """Wait for the pending batch, which writes to shared memory, and discard it."""
        if self._pending is not None:
            self._pending.batch.exception()
            self._pending = None

    def _make_batch(self, index: int, horizon: int) -> Batch:
        replay, offsets = self._replay, self._offsets
        buffers = self._buffers[index % len(self._buffers)].wait_until_free()
        rng = np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, 0, index]))
        (starts, length), positions = self._sample_rows(rng, horizon)
        steps = replay.steps.take((starts[:, None] + offsets) % replay.capacity)  # [B, n]
        in_window = offsets < length[:, None]
        reward = (np.where(in_window, steps["reward"], 0) * self._discounts[:-1]).sum(1)
        terminated = (in_window & steps["terminated"]).any(1)
        # s and s' in parallel: numpy releases the interpreter lock while it copies.
        next_indices = starts + length
        rows = len(starts)
        next_stacks = self._next_views_executor.submit(
            replay.stack_frames, next_indices, out=buffers.next_views[:, :rows]
        )
        views, mask = replay.stack_frames(starts, out=buffers.views[:, :rows])
        next_views, next_mask = next_stacks.result()
        search = self._neighbor_search
        distances = features = None
        if search is not None:
            distances = search(replay, starts, next_indices, horizon=horizon)
            features = torch.from_numpy(get_feature_rows(replay, starts).features)
        return Batch(
            views=torch.from_numpy(views),
            mask=_to_tensor(mask),
            action=_to_tensor(steps["action"][:, 0]),
            reward_ext=_to_tensor(reward.astype(np.float32)),
            discount=_to_tensor(np.where(terminated, 0, self._discounts[length]).astype(np.float32)),
            next_views=torch.from_numpy(next_views),
            next_mask=_to_tensor(next_mask),
            indices=_to_tensor(starts),
            next_indices=_to_tensor(next_indices),
            neighbor_distances=distances,
            stored_features=features,
            positions=_to_optional_tensor(positions),
            vectors=_to_optional_tensor(replay.stack_vectors(starts)),
            next_vectors=_to_optional_tensor(replay.stack_vectors(next_indices)),
        )

    def _sample_rows(self, rng: np.random.Generator, horizon: int) -> tuple[Windows, NDArray[np.int64] | None]:
        """Sample the n-step windows of a batch, and their places in their sequences."""
        replay, n_step, length = self._replay, len(self._offsets), self._sequence_length
        if length is None:
            return sample_windows(replay, rng, count=self._batch_size, n_step=n_step, horizon=horizon), None
        # An episode that is shorter gives a shorter sequence: none goes beyond its episode.
        count = self._batch_size // length
        return split_windows(
            sample_windows(replay, rng, count=count, n_step=length - 1, horizon=horizon), n_step=n_step
        )


class _Pending(NamedTuple):
    horizon: int
    batch: "Future[Batch]"


class _BatchBuffers:
    """Reused memory for the images of a batch; allocating it would cost as much as the copy."""

    def __init__(self, replay: ReplayBuffer, rows: int, device: torch.device) -> None:
        self.views, self.next_views = replay.allocate_stacks(rows), replay.allocate_stacks(rows)
        if device.type == "cuda":
            self.views, self.next_views = (_allocate_pinned(stacks) for stacks in (self.views, self.next_views))
        self._copied: torch.cuda.Event | None = None

    def to_device(self, batch: Batch, device: torch.device) -> Batch:
        """Return the batch on `device`; copies to CUDA are asynchronous."""
        if device.type == "cpu":
            return batch
        batch = batch.to(device)
        if device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(device))
        return batch

    def wait_until_free(self) -> "_BatchBuffers":
        """Wait until an asynchronous copy to the device has finished; return self."""
        if self._copied is not None:
            self._copied.synchronize()
        return self


def _allocate_pinned(like: NDArray[np.uint8]) -> NDArray[Any]:
    return torch.empty(like.shape, dtype=torch.uint8, pin_memory=True).numpy()


def _to_tensor(part: NDArray[Any]) -> torch.Tensor:
    # Always a copy: numpy calls a field of a single record contiguous, whose strides torch refuses.
    return torch.from_numpy(np.array(part, order="C"))


def _to_optional_tensor(part: NDArray[Any] | None) -> torch.Tensor | None:
    return None if part is None else _to_tensor(part)
