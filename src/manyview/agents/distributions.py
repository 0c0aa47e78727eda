"""Discrete and continuous action distributions, sampled by counter-based random keys."""

import math
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from manyview.utils.counter_rng import normal, to_open_interval, uniform

LOG_2PI = math.log(math.tau)


class ActionDistribution(Protocol):
    """Distribution over actions, one row per state."""

    def sample(self, key: Tensor) -> Tensor:
        """Sample one action per row, a function of the row's `key` [B]."""

    def mode(self) -> Tensor:
        """Return the most likely action of each row."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities [B] of one action per row."""

    def entropy(self) -> Tensor:
        """Return the entropy [B] of each row, in nats."""


class Categorical:
    """Categorical distribution over A discrete actions."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = F.log_softmax(logits, dim=-1)  # [B, A]

    def sample(self, key: Tensor) -> Tensor:
        # Gumbel-max trick: argmax(log p + Gumbel noise) is distributed as p.
        noise = -(-to_open_interval(uniform(key, self.log_probs.shape[-1])).log()).log()
        return (self.log_probs + noise).argmax(-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class Gaussian:
    """Diagonal Gaussian.

    Environments get samples clipped to [-1, 1]; the policy learns from unclipped ones.
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std.expand_as(mean)

    def sample(self, key: Tensor) -> Tensor:
        return self.mean + self.log_std.exp() * normal(key, self.mean.shape[-1])

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        standardized = (action - self.mean) / self.log_std.exp()
        return (-0.5 * standardized.pow(2) - self.log_std - 0.5 * LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 * LOG_2PI + 0.5).sum(-1)
