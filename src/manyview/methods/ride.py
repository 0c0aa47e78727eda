"""RIDE: what a step changed, divided by how often the episode has been there (Raileanu and Rocktäschel, 2020).

As in the paper's appendix, visits are counted by k nearest neighbours (Badia et al., 2020). Written from the papers.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.mem.choices import MOST_UNITS, refuse_above, refuse_below, refuse_not_positive, refuse_unknown_choices
from manyview.mem.encoder import Trunk
from manyview.mem.running import RewardScale, reward_moments
from manyview.methods.plain import Plain, PlainConfig


@dataclass(frozen=True, kw_only=True)
class RIDEConfig:
    latent_dim: int = 128
    """Features of a view."""
    trunk: Trunk = "paper"
    """Its convolutions, see `mem.trunk`."""
    hidden: int = 256
    """Width of the two models."""
    lr: float = 1e-4
    inverse_coef: float = 0.1
    """Weight of naming the action by the two states around it, without which the features would collapse."""
    forward_coef: float = 10.0
    """Weight of foreseeing the next state."""
    k: int = 10
    """How many nearest earlier states of the episode count as visits."""
    kernel: float = 1e-3
    """ε: how quickly a state at a distance no longer counts as a visit."""
    reward_scale: RewardScale = "raw"
    """r̂ as it is, divided by its running `std`, or `centered`, in deviations from the rollout's mean."""

    def __post_init__(self) -> None:
        refuse_unknown_choices(self)
        refuse_below(self, 1, "latent_dim", "hidden", "k")
        refuse_above(self, MOST_UNITS, "latent_dim", "hidden")
        refuse_below(self, 0, "inverse_coef", "forward_coef")
        refuse_not_positive(self, "lr", "kernel")


class Embedded(NamedTuple):
    embedding: Tensor  # [B, S]


class RIDE(nn.Module):
    """`r̂ = |φ(s') - φ(s)| / √N(s')`, and two models that teach φ what an agent can change.

    PAPER: D35. The appendix names the forward model alone, which φ = constant would please; RIDE's own inverse model
    keeps it alive. `inverse_coef=0` is the appendix's text.
    """

    def __init__(
        self,
        num_views: int,
        image_shape: tuple[int, int, int],
        num_actions: int,
        config: RIDEConfig | None = None,
        *,
        discrete: bool = True,
    ) -> None:
        super().__init__()
        self.config = config = config or RIDEConfig()
        self.num_actions, self.discrete = num_actions, discrete
        plain = PlainConfig(latent_dim=config.latent_dim, trunk=config.trunk)
        self.encoder = Plain(num_views, image_shape, plain)
        size, hidden = self.encoder.state_dim, config.hidden
        self.foresight = nn.Sequential(nn.Linear(size + num_actions, hidden), nn.ReLU(), nn.Linear(hidden, size))
        self.inverse = nn.Sequential(nn.Linear(2 * size, hidden), nn.ReLU(), nn.Linear(hidden, num_actions))
        self.moments = reward_moments(config.reward_scale)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=config.lr)

    @torch.no_grad()
    def encode(self, views: Tensor, mask: Tensor | None = None) -> Embedded:
        return Embedded(self.encoder.encode(views, mask).state)

    @torch.no_grad()
    def reward_along(self, features: Embedded, ended: Tensor) -> Tensor:
        """[T, E]. What an episode's last step led to is not in a rollout, so that step pays nothing."""
        embedding = features.embedding.float()
        change = (embedding[1:] - embedding[:-1]).norm(dim=-1)
        visits = visit_counts(embedding, ended, k=self.config.k, kernel=self.config.kernel)
        reward = change / visits[1:].sqrt()
        if self.training:
            self.moments.update(reward.reshape(-1, 1), ~ended.reshape(-1, 1), batches=ended.shape[1])
        return torch.where(ended, 0.0, self.moments.scaled(reward, self.config.reward_scale))

    def learn(self, batch: Any) -> dict[str, Tensor]:
        """One step of φ and both models on the rows whose next state is of the same episode."""
        now = self.encoder.encode(batch.views, batch.mask).state
        then = self.encoder.encode(batch.next_views, batch.next_mask).state
        rows = batch.follows.float()
        action = F.one_hot(batch.action, self.num_actions).float() if self.discrete else batch.action
        with torch.autocast(now.device.type, enabled=False):
            foreseen = self.foresight(torch.cat([now, action], 1))
            guessed = self.inverse(torch.cat([now, then], 1))
        forward = _mean((foreseen - then).norm(dim=1), rows)
        wrong = (
            F.cross_entropy(guessed, batch.action, reduction="none")
            if self.discrete
            else (guessed - action).square().mean(1)
        )
        inverse = _mean(wrong, rows)
        loss = self.config.forward_coef * forward + self.config.inverse_coef * inverse
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters() if p.grad is not None])
        if norm.isfinite():
            self.optimizer.step()
        return {"ride_forward_loss": forward.detach(), "ride_inverse_loss": inverse.detach(), "ride_grad": norm}


def visit_counts(states: Tensor, ended: Tensor, *, k: int, kernel: float) -> Tensor:
    """N [T + 1, E] of states [T + 1, E, S]: 1, and each of the k nearest earlier ones of the episode as far as it is
    the same. `ended` [T, E] are the steps between them that ended an episode.

    A state at squared distance d counts ε / (d / mean + ε), where the mean is over all neighbours that were found: 1
    for the same state, next to nothing for one as far away as neighbours are. States of an episode that an earlier
    rollout has seen are not known here.
    """
    count = len(states)
    episode = torch.cat([torch.zeros_like(ended[:1]), ended]).long().cumsum(0).T  # [E, T + 1]
    points = states.transpose(0, 1)  # [E, T + 1, S]
    squared = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    order = torch.arange(count, device=states.device)
    known = (episode.unsqueeze(2) == episode.unsqueeze(1)) & (order < order.unsqueeze(1))  # [E, now, earlier]
    nearest = squared.masked_fill(~known, torch.inf).topk(min(k, count), dim=2, largest=False).values
    there = nearest.isfinite()
    mean = torch.where(there, nearest, 0.0).sum() / there.sum().clamp(min=1)
    alike = torch.where(there, kernel / (nearest / mean.clamp(min=1e-12) + kernel), 0.0)
    return 1 + alike.sum(2).T


def _mean(values: Tensor, rows: Tensor) -> Tensor:
    return (values * rows).sum() / rows.sum().clamp(min=1)
