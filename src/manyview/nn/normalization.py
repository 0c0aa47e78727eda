"""Running mean and standard deviation, stored as buffers so that checkpoints include them."""

from typing import Literal

import torch
from torch import Tensor, nn

from manyview.utils.distributed import all_reduce_sum

RewardScale = Literal["raw", "std", "centered"]
MIN_STD = 1e-4
ROUNDING = 1e-6
"""Largest relative spread of rewards that are equal but for rounding in float32."""
MAX_NORMALIZED = 10.0
"""Bound of normalized state vectors, in standard deviations: a fault of a sensor stays bounded."""


class RunningMoments(nn.Module):
    """Bias-corrected exponential moving averages of the mean and the variance within batches."""

    mean_sum: Tensor
    variance_sum: Tensor
    weight: Tensor

    def __init__(self, num_columns: int, *, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("mean_sum", torch.zeros(num_columns))
        self.register_buffer("variance_sum", torch.zeros(num_columns))
        self.register_buffer("weight", torch.zeros(num_columns))

    @torch.no_grad()
    def update(self, values: Tensor, mask: Tensor | None = None, *, num_batches: int = 1) -> None:
        """Update by a batch [B, columns], with the weight of `num_batches` updates.

        Columns that `mask` excludes in all rows are unchanged. All learners of a run share the batch statistics.
        """
        if mask is None:
            mask = torch.ones_like(values, dtype=torch.bool)
        count = all_reduce_sum(mask.sum(0))
        mean = all_reduce_sum(torch.where(mask, values, 0.0).sum(0)) / count.clamp(min=1)
        variance = all_reduce_sum(torch.where(mask, values - mean, 0.0).pow(2).sum(0)) / count.clamp(min=1)
        share = torch.where(count > 0, 1 - self.decay**num_batches, 0.0)
        self.mean_sum.lerp_(mean, share)
        self.variance_sum.lerp_(variance, share)
        self.weight.lerp_(torch.ones_like(self.weight), share)

    def divide(self, values: Tensor, scale: Tensor) -> Tensor:
        """Return `values` / `scale`, unchanged before the first update and where `scale` is 0."""
        return torch.where((self.weight > 0) & (scale > 0), values / scale, values)

    def scale_reward(self, reward: Tensor, mode: RewardScale) -> Tensor:
        """Return `reward` [B] `raw`, divided by its `std`, or also `centered` on its mean."""
        if mode == "raw":
            return reward
        # A spread below 1 % of the mean, or below MIN_STD, is rounding and must not be amplified.
        spread = self.std.clamp(min=(0.01 * self.mean.abs()).clamp(min=MIN_STD))
        # Equal rewards have no scale. On a toy with few images, an evaluation's states may differ all the same.
        spread = torch.where(self.std > ROUNDING * self.mean.abs().clamp(min=1), spread, 0.0)
        return self.divide(reward - self.mean if mode == "centered" else reward, spread)

    @property
    def mean(self) -> Tensor:
        return self.mean_sum / self.weight.clamp(min=1e-8)

    @property
    def std(self) -> Tensor:
        return (self.variance_sum / self.weight.clamp(min=1e-8)).sqrt()


class CumulativeMoments(nn.Module):
    """Mean and standard deviation of all values so far, each with equal weight."""

    count: Tensor
    mean: Tensor
    squared_deviations: Tensor

    def __init__(self, num_columns: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        for name in ("mean", "squared_deviations"):
            self.register_buffer(name, torch.zeros(num_columns))

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """Add a batch [B, columns]. All learners of a run share the statistics."""
        # The parallel form of Welford's algorithm (Chan et al., 1979).
        new = all_reduce_sum(torch.full_like(self.count, len(values)))
        if new == 0:
            return
        mean = all_reduce_sum(values.sum(0)) / new
        deviations = all_reduce_sum((values - mean).square().sum(0))
        total, delta = self.count + new, mean - self.mean
        self.squared_deviations += deviations + delta.square() * self.count * new / total
        self.mean += delta * new / total
        self.count.copy_(total)

    def scale_reward(self, reward: Tensor, mode: RewardScale) -> Tensor:
        """Return `reward` [B] `raw`, divided by the `std`, or also `centered` on the mean."""
        if mode == "raw" or self.count == 0:
            return reward
        return (reward - self.mean if mode == "centered" else reward) / self.std.clamp(min=MIN_STD)

    @property
    def std(self) -> Tensor:
        return (self.squared_deviations / self.count.clamp(min=1)).sqrt()


class VectorNormalizer(CumulativeMoments):
    """Normalization of state vectors by the moments of all values so far; `update` adds training data."""

    def forward(self, vectors: Tensor) -> Tensor:
        """Return `vectors` [B, D] with mean 0 and standard deviation 1, at most `MAX_NORMALIZED`.

        Before the first update they keep their unit. A number that never changes becomes 0.
        """
        # A spread this far below the mean is rounding of float32 and must not be amplified.
        spread = torch.maximum(self.std, (1e-5 * self.mean.abs()).clamp(min=1e-6))
        normalized = torch.where(self.count > 0, (vectors - self.mean) / spread, vectors)
        return normalized.clamp(-MAX_NORMALIZED, MAX_NORMALIZED)


def make_reward_moments(mode: RewardScale) -> RunningMoments:
    """Return the moments that scale r̂: running for `std`, of the batch for `centered`.

    PAPER: D42. A running mean that lags behind shrinking features makes every state look bad; learning from that
    shrinks them further.
    """
    return RunningMoments(1, decay=0.0 if mode == "centered" else 0.99)
