"""Sequences of consecutive observations in a batch, for recurrent networks."""

from typing import NamedTuple

import torch
from torch import Tensor

from manyview.data.batch import Batch


class Sequences(NamedTuple):
    """The O observations of B sequences, each up to T long, without padding; `pad` arranges them in time."""

    views: Tensor  # [O, V, C, H, W] uint8
    mask: Tensor  # [O, V] bool
    previous_action: Tensor  # [O, A], zero at the start of a sequence
    time: Tensor  # [O] int64, place of the observation in its sequence
    sequence: Tensor  # [O] int64, number of the sequence
    rows: Tensor  # [N] int64, observation s_t of each row of the batch
    next_rows: Tensor  # [N] int64, observation s_{t+n}

    def pad(self, values: Tensor) -> Tensor:
        """Return `values` [O, ...] as [T, B, ...], zero after the end of a sequence."""
        length, count = int(self.time.max()) + 1, int(self.sequence.max()) + 1
        return values.new_zeros(length, count, *values.shape[1:]).index_put((self.time, self.sequence), values)

    def unpad(self, padded: Tensor) -> Tensor:
        """Return the values [O, ...] of `padded` [T, B, ...]."""
        return padded[self.time, self.sequence]


def pack_sequences(batch: Batch) -> Sequences:
    """Return the observations of a batch of sequences: s_t of every row, then the last one of every sequence.

    Raises ValueError for a batch of independent transitions.
    """
    if batch.positions is None:
        raise ValueError("batch without sequences: expected positions, got None. Give the sampler a sequence_length.")
    time, next_time = batch.positions.unbind(1)
    is_first, row = time == 0, torch.arange(len(time), device=time.device)
    sequence = is_first.cumsum(0) - 1
    is_last = is_first.roll(-1)  # a row before the first of the next sequence; the last row of the batch
    last_time = next_time[is_last]  # [B]
    previous_action = torch.where(is_first[:, None], 0, batch.action.roll(1, 0))
    return Sequences(
        views=torch.cat([batch.views, batch.next_views[is_last]]),
        mask=torch.cat([batch.mask, batch.next_mask[is_last]]),
        previous_action=torch.cat([previous_action, batch.action[is_last]]),
        time=torch.cat([time, last_time]),
        sequence=torch.cat([sequence, sequence[is_last]]),
        rows=row,
        next_rows=torch.where(next_time == last_time[sequence], len(row) + sequence, row + next_time - time),
    )
