"""Generalized advantage estimation (GAE), episode returns and reward normalization."""

import torch
from torch import Tensor, nn


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, done: Tensor, *, discount: float, gae_lambda: float
) -> Tensor:
    """Return the GAE advantages [T, E] (Schulman et al., 2016).

    A_t = Σ_j (γλ)^j δ_{t+j} with the TD error δ = r + γ V(next) - V. The sum stops at the end of the episode or of the
    rollout.

    Args:
        reward: [T, E].
        value: [T, E], V of the state acted on.
        next_value: [T, E], V of the next state: 0 after a termination. After a truncation it is the value of the
            episode's final state, not of the next episode's first one.
        done: [T, E] bool, true where the episode terminated or was truncated.
        discount: γ.
        gae_lambda: λ.

    """
    delta = reward + discount * next_value - value
    carry = discount * gae_lambda * (~done).to(reward.dtype)
    advantage, next_advantage = torch.empty_like(delta), torch.zeros_like(delta[0])
    for step in reversed(range(len(delta))):
        next_advantage = advantage[step] = delta[step] + carry[step] * next_advantage
    return advantage


def explained_variance(value: Tensor, advantage: Tensor) -> Tensor:
    """Return 1 - Var(A) / Var(V + A), at most 1: the part of the returns that the values explain."""
    return 1 - advantage.var(correction=0) / (value + advantage).var(correction=0).clamp(min=1e-8)


class EpisodeReturns(nn.Module):
    """Undiscounted returns of finished episodes.

    Running sums are buffers, since an episode may span several rollouts.
    """

    returns: Tensor

    def __init__(self, num_envs: int) -> None:
        super().__init__()
        self.register_buffer("returns", torch.zeros(num_envs))  # [E], of the running episodes

    @torch.no_grad()
    def forward(self, reward: Tensor, done: Tensor) -> Tensor:
        """Add `reward` [T, E]; return the returns [N] of the episodes that end, by `done` [T, E]."""
        running_returns = torch.empty_like(reward)
        for step in range(len(reward)):
            running_returns[step] = self.returns.add_(reward[step])
            self.returns.masked_fill_(done[step], 0.0)
        return running_returns[done]


class RewardNormalizer(nn.Module):
    """Division of rewards by the running standard deviation of the discounted returns.

    PAPER: D33. The discount is 0.99 as in OpenAI Baselines, whatever that of the agent.
    """

    returns: Tensor
    count: Tensor
    mean: Tensor
    squared_deviations: Tensor

    def __init__(self, num_envs: int, *, discount: float = 0.99, max_abs: float = 10.0) -> None:
        super().__init__()
        self.discount, self.max_abs = discount, max_abs
        self.register_buffer("returns", torch.zeros(num_envs))  # [E], discounted, of the running episodes
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        for name in ("mean", "squared_deviations"):
            self.register_buffer(name, torch.zeros(()))

    @torch.no_grad()
    def forward(self, reward: Tensor, done: Tensor) -> Tensor:
        """Return `reward` [T, E] scaled and clipped to ±`max_abs`; episodes end at `done` [T, E]."""
        returns = torch.empty_like(reward)
        for step in range(len(reward)):
            returns[step] = self.returns.mul_(self.discount).add_(reward[step])
            self.returns.masked_fill_(done[step], 0.0)
        self._update_moments(returns)
        std = (self.squared_deviations / self.count).sqrt().clamp(min=1e-4)
        return (reward / std).clamp(-self.max_abs, self.max_abs)

    def _update_moments(self, returns: Tensor) -> None:
        """Merge a batch into count, mean and sum of squared deviations (Chan et al., 1979)."""
        total, delta = self.count + returns.numel(), returns.mean() - self.mean
        self.squared_deviations += (
            returns - returns.mean()
        ).square().sum() + delta.square() * self.count * returns.numel() / total
        self.mean += delta * returns.numel() / total
        self.count.copy_(total)
