"""Generalised advantage estimation (Schulman et al., 2016), and the scale of rewards."""

import torch
from torch import Tensor, nn


def gae(reward: Tensor, value: Tensor, next_value: Tensor, ended: Tensor, *, discount: float, decay: float) -> Tensor:
    """Advantages [T, E]: Σ_j (γλ)^j δ_{t+j} with δ = r + γ V(next) - V, up to the end of the episode or of the rollout.

    Args:
        reward: [T, E].
        value: [T, E], of the state that was acted on.
        next_value: [T, E], of the state that followed: 0 where the world ended, and where only the clock ran out the
            value of the episode's last state, not of the next episode's first.
        ended: [T, E], whether the episode did, for either reason.
        discount: γ.
        decay: λ.

    """
    delta = reward + discount * next_value - value
    carry = discount * decay * (~ended).to(reward.dtype)
    advantage, later = torch.empty_like(delta), torch.zeros_like(delta[0])
    for step in reversed(range(len(delta))):
        later = advantage[step] = delta[step] + carry[step] * later
    return advantage


def explained_share(value: Tensor, advantage: Tensor) -> Tensor:
    """Of the variance of returns, what their values knew of; at most 1."""
    return 1 - advantage.var(correction=0) / (value + advantage).var(correction=0).clamp(min=1e-8)


class EpisodeSums(nn.Module):
    """What episodes have been paid in all, of which several may lie in a rollout and one in several rollouts."""

    sums: Tensor

    def __init__(self, envs: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(envs))  # of each environment's episode so far

    @torch.no_grad()
    def forward(self, reward: Tensor, ended: Tensor) -> Tensor:
        """The sums [N] of the N episodes that `ended` [T, E], with rewards [T, E]."""
        whole = torch.empty_like(reward)
        for step in range(len(reward)):
            whole[step] = self.sums.add_(reward[step])
            self.sums.masked_fill_(ended[step], 0.0)
        return whole[ended]


class ReturnScale(nn.Module):
    """Rewards in units of the standard deviation of the discounted sums they add up to, so far."""

    sums: Tensor
    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, envs: int, *, discount: float, most: float = 10.0) -> None:
        super().__init__()
        self.discount, self.most = discount, most
        self.register_buffer("sums", torch.zeros(envs))  # of each environment's episode
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        for name in ("mean", "squares"):
            self.register_buffer(name, torch.zeros(()))

    @torch.no_grad()
    def forward(self, reward: Tensor, ended: Tensor) -> Tensor:
        """Rewards [T, E] of which episodes `ended` [T, E] at some, scaled and cut to `most` in size."""
        sums = torch.empty_like(reward)
        for step in range(len(reward)):
            sums[step] = self.sums.mul_(self.discount).add_(reward[step])
            self.sums.masked_fill_(ended[step], 0.0)
        self._take(sums)
        std = (self.squares / self.count).sqrt().clamp(min=1e-4)
        return (reward / std).clamp(-self.most, self.most)

    def _take(self, sums: Tensor) -> None:
        """Count, mean and summed squares of all so far together with these (Chan et al., 1979)."""
        total, apart = self.count + sums.numel(), sums.mean() - self.mean
        self.squares += (sums - sums.mean()).square().sum() + apart.square() * self.count * sums.numel() / total
        self.mean += apart * sums.numel() / total
        self.count.copy_(total)
