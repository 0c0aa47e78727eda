"""Recurrent state-space model (Hafner et al., 2019) with the layers of DRIBO.

A GRU carries the past; a Gaussian posterior adds the observation, a Gaussian prior predicts it from the past alone.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_STD = 0.1
"""Smallest standard deviation of prior and posterior."""


class DiagonalGaussian(NamedTuple):
    """Gaussian distribution with a diagonal covariance."""

    mean: Tensor  # [..., Z]
    std: Tensor  # [..., Z]

    def detach(self) -> "DiagonalGaussian":
        """Return the distribution without gradient."""
        return DiagonalGaussian(self.mean.detach(), self.std.detach())

    def kl_divergence(self, other: "DiagonalGaussian") -> Tensor:
        """Return KL(self || other) [...], summed over the dimensions."""
        ratio, distance = self.std / other.std, (self.mean - other.mean) / other.std
        return 0.5 * (ratio.square() + distance.square() - 1 - 2 * ratio.log()).sum(-1)


class GaussianHead(nn.Sequential):
    """Two linear layers, the hidden one with ELU and LayerNorm, to mean and standard deviation."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, hidden), nn.ELU(), nn.LayerNorm(hidden), nn.Linear(hidden, 2 * outputs))

    def predict(self, inputs: Tensor) -> DiagonalGaussian:
        """Return the distribution for `inputs` [..., I]."""
        mean, std = self(inputs).chunk(2, dim=-1)
        return DiagonalGaussian(mean, F.softplus(std) + MIN_STD)


class RSSMOutput(NamedTuple):
    """States [..., D] and [..., Z], and the distribution that the latter is a sample of."""

    deterministic: Tensor
    stochastic: Tensor
    posterior: DiagonalGaussian


class RSSM(nn.Module):
    """Recurrent state of D deterministic and Z stochastic dimensions; zero before the first observation."""

    def __init__(
        self, embedding_dim: int, action_dim: int, *, deterministic_dim: int, stochastic_dim: int, hidden: int
    ) -> None:
        super().__init__()
        self.deterministic_dim, self.stochastic_dim = deterministic_dim, stochastic_dim
        self.cell_input = nn.Sequential(nn.Linear(stochastic_dim + action_dim, hidden), nn.ELU())
        self.cell = nn.GRUCell(hidden, deterministic_dim)
        self.cell_norm = nn.LayerNorm(deterministic_dim)
        self.prior = GaussianHead(deterministic_dim, hidden, stochastic_dim)
        self.posterior = GaussianHead(deterministic_dim + embedding_dim, hidden, stochastic_dim)
        self.sample_norm = nn.LayerNorm(stochastic_dim)

    def step(
        self,
        deterministic: Tensor,
        stochastic: Tensor,
        embedding: Tensor,
        previous_action: Tensor,
        noise: Tensor | None = None,
    ) -> RSSMOutput:
        """Advance the state [B, D], [B, Z] by an action [B, A] and an observation [B, E].

        `noise` [B, Z] samples the posterior; without it the state has its mean.
        """
        deterministic = self.cell_norm(
            self.cell(self.cell_input(torch.cat([stochastic, previous_action], 1)), deterministic)
        )
        posterior = self.posterior.predict(torch.cat([deterministic, embedding], 1))
        sample = posterior.mean if noise is None else posterior.mean + posterior.std * noise
        return RSSMOutput(deterministic, self.sample_norm(sample), posterior)

    def forward(self, embedding: Tensor, previous_action: Tensor, noise: Tensor | None = None) -> RSSMOutput:
        """Advance from the zero state along sequences [T, B, ...]; the output is [T, B, ...]."""
        count, outputs = embedding.shape[1], list[RSSMOutput]()
        deterministic = embedding.new_zeros(count, self.deterministic_dim)
        stochastic = embedding.new_zeros(count, self.stochastic_dim)
        for time, observed in enumerate(embedding):
            drawn = None if noise is None else noise[time]
            outputs.append(self.step(deterministic, stochastic, observed, previous_action[time], drawn))
            deterministic, stochastic, _ = outputs[-1]
        deterministics, stochastics, posteriors = zip(*outputs, strict=True)
        means, stds = zip(*posteriors, strict=True)
        return RSSMOutput(
            torch.stack(deterministics),
            torch.stack(stochastics),
            DiagonalGaussian(torch.stack(means), torch.stack(stds)),
        )
