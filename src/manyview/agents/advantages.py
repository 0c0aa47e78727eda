"""Generalised advantage estimation (Schulman et al., 2016), and the scale of rewards."""

import torch
from torch import Tensor, nn


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, done: Tensor, *, discount: float, gae_lambda: float
) -> Tensor:
    """Advantages [T, E]: Σ_j (γλ)^j δ_{t+j} with δ = r + γ V(next) - V, up to the end of the episode or of the rollout.

    Args:
        reward: [T, E].
        value: [T, E], of the state that was acted on.
        next_value: [T, E], of the state that followed: 0 where the world ended, and where only the clock ran out the
            value of the episode's last state, not of the next episode's first.
        done: [T, E], whether the episode did, for either reason.
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
    """Of the variance of returns, what their values knew of; at most 1."""
    return 1 - advantage.var(correction=0) / (value + advantage).var(correction=0).clamp(min=1e-8)


class EpisodeReturns(nn.Module):
    """What episodes have been paid in all, of which several may lie in a rollout and one in several rollouts."""

    returns: Tensor

    def __init__(self, num_envs: int) -> None:
        super().__init__()
        self.register_buffer("returns", torch.zeros(num_envs))  # of each environment's episode so far

    @torch.no_grad()
    def forward(self, reward: Tensor, done: Tensor) -> Tensor:
        """The sums [N] of the N episodes that `done` [T, E], with rewards [T, E]."""
        running_returns = torch.empty_like(reward)
        for step in range(len(reward)):
            running_returns[step] = self.returns.add_(reward[step])
            self.returns.masked_fill_(done[step], 0.0)
        return running_returns[done]


class RewardNormalizer(nn.Module):
    """Rewards in units of the standard deviation of the discounted sums they add up to, so far."""

    returns: Tensor
    count: Tensor
    mean: Tensor
    squared_deviations: Tensor

    def __init__(self, num_envs: int, *, discount: float, max_abs: float = 10.0) -> None:
        super().__init__()
        self.discount, self.max_abs = discount, max_abs
        self.register_buffer("returns", torch.zeros(num_envs))  # of each environment's episode
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        for name in ("mean", "squared_deviations"):
            self.register_buffer(name, torch.zeros(()))

    @torch.no_grad()
    def forward(self, reward: Tensor, done: Tensor) -> Tensor:
        """Rewards [T, E] of which episodes `done` [T, E] at some, scaled and clipped to `max_abs` in size."""
        returns = torch.empty_like(reward)
        for step in range(len(reward)):
            returns[step] = self.returns.mul_(self.discount).add_(reward[step])
            self.returns.masked_fill_(done[step], 0.0)
        self._update_moments(returns)
        std = (self.squared_deviations / self.count).sqrt().clamp(min=1e-4)
        return (reward / std).clamp(-self.max_abs, self.max_abs)

    def _update_moments(self, returns: Tensor) -> None:
        """Count, mean and summed squares of all so far together with these (Chan et al., 1979)."""
        total, delta = self.count + returns.numel(), returns.mean() - self.mean
        self.squared_deviations += (
            returns - returns.mean()
        ).square().sum() + delta.square() * self.count * returns.numel() / total
        self.mean += delta * returns.numel() / total
        self.count.copy_(total)
