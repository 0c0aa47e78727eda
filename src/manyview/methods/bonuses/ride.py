"""RIDE (Raileanu and Rocktäschel, 2020): impact of a step over episodic visits.

r̂ is the change of the embedding, divided by the root of the episodic visit count. As in the paper's appendix, visits
are counted by k nearest neighbors (Badia et al., 2020). Written from the papers.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.data.batch import Batch, Minibatch, get_next
from manyview.data.rollout_buffer import RolloutBuffer
from manyview.methods.interfaces import Bonus, BonusConfig, BuildContext
from manyview.methods.registry import register_bonus
from manyview.methods.representations.pixel import PixelEncoder, PixelEncoderConfig, PixelFeatures
from manyview.nn.normalization import RewardScale, make_reward_moments
from manyview.nn.optim import make_adam, optimizer_step
from manyview.nn.trunks import Trunk
from manyview.utils.validation import MAX_UNITS, check_at_least, check_at_most, check_positive


@dataclass(frozen=True, kw_only=True)
class RIDEConfig(BonusConfig):
    """Settings of RIDE."""

    latent_dim: int = 128
    """Feature dimension per view."""
    trunk: Trunk = "paper"
    """Convolutions, see `representation=mem`."""
    hidden: int = 256
    """Hidden width of forward and inverse model."""
    lr: float = 1e-4
    """Learning rate of encoder and models."""
    inverse_coef: float = 0.1
    """Weight of the inverse model's loss (predict the action from both states); at 0 the features can collapse."""
    forward_coef: float = 10.0
    """Weight of the forward model's loss (predict the next state)."""
    k: int = 10
    """Number of nearest earlier states of the episode that count as visits."""
    kernel: float = 1e-3
    """ε of the visit kernel: a smaller value counts only closer states as visits."""
    reward_scale: RewardScale = "raw"
    """r̂ as it is (`raw`), divided by its running `std`, or `centered`: standardized within the rollout."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "latent_dim", "hidden", "k")
        check_at_most(self, MAX_UNITS, "latent_dim", "hidden")
        check_at_least(self, 0, "inverse_coef", "forward_coef")
        check_positive(self, "lr", "kernel")


class RIDE(Bonus):
    """Bonus `r̂ = |φ(s') - φ(s)| / √N(s')`, with a forward and an inverse model that train φ.

    PAPER: D35. The appendix names the forward model alone, which a constant φ minimizes; RIDE's inverse model prevents
    that. `inverse_coef=0` is the appendix's text.
    """

    config: RIDEConfig
    uses_next_views = True

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
        encoder_config = PixelEncoderConfig(latent_dim=config.latent_dim, trunk=config.trunk)
        self.encoder = PixelEncoder(num_views, image_shape, encoder_config)
        size, hidden = self.encoder.state_dim, config.hidden
        self.forward_model = nn.Sequential(nn.Linear(size + num_actions, hidden), nn.ReLU(), nn.Linear(hidden, size))
        self.inverse_model = nn.Sequential(nn.Linear(2 * size, hidden), nn.ReLU(), nn.Linear(hidden, num_actions))
        self.reward_moments = make_reward_moments(config.reward_scale)
        self.optimizer = make_adam(self.parameters(), lr=config.lr)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> PixelFeatures:
        """Embed `views` [B, V, C, H, W] by φ."""
        return self.encoder.encode(views, mask)

    @torch.no_grad()
    def compute_rollout(self, rollout: RolloutBuffer, features: Any | None, *, window: int | None) -> Tensor:  # noqa: ARG002
        return self.compute_reward(rollout.encode_all(self.encode).state, rollout.done)

    @torch.no_grad()
    def compute_reward(self, embedding: Tensor, done: Tensor) -> Tensor:
        """Return r̂ [T, E] for embeddings [T + 1, E, S] and `done` [T, E].

        It is 0 for the last step of an episode, whose next state is not in the rollout.
        """
        embedding = embedding.float()
        change = (embedding[1:] - embedding[:-1]).norm(dim=-1)
        visits = count_visits(embedding, done, k=self.config.k, kernel=self.config.kernel)
        reward = change / visits[1:].sqrt()
        if self.training:
            self.reward_moments.update(reward.reshape(-1, 1), ~done.reshape(-1, 1), num_batches=done.shape[1])
        return torch.where(done, 0.0, self.reward_moments.scale_reward(reward, self.config.reward_scale))

    def update(self, batch: Batch | Minibatch) -> dict[str, Tensor]:
        """Take one step of φ and both models on the rows whose next state is in the same episode."""
        state = self.encoder.encode(batch.views, batch.mask).state
        next_views, next_mask, has_next = get_next(batch)
        next_state = self.encoder.encode(next_views, next_mask).state
        weights = has_next.float()
        action = F.one_hot(batch.action, self.num_actions).float() if self.discrete else batch.action
        with torch.autocast(state.device.type, enabled=False):
            predicted_state = self.forward_model(torch.cat([state, action], 1))
            predicted_action = self.inverse_model(torch.cat([state, next_state], 1))
        forward_loss = _weighted_mean((predicted_state - next_state).norm(dim=1), weights)
        inverse_errors = (
            F.cross_entropy(predicted_action, batch.action, reduction="none")
            if self.discrete
            else (predicted_action - action).square().mean(1)
        )
        inverse_loss = _weighted_mean(inverse_errors, weights)
        loss = self.config.forward_coef * forward_loss + self.config.inverse_coef * inverse_loss
        grad_norm = optimizer_step(loss, self.optimizer)
        return {
            "ride_forward_loss": forward_loss.detach(),
            "ride_inverse_loss": inverse_loss.detach(),
            "ride_grad_norm": grad_norm,
        }


def count_visits(states: Tensor, done: Tensor, *, k: int, kernel: float) -> Tensor:
    """Return the episodic pseudo-count N [T + 1, E] of `states` [T + 1, E, S].

    N is 1 plus the kernel values of the k nearest earlier states of the episode. A neighbor at squared distance d
    counts ε / (d / mean + ε), with the mean over all neighbors: 1 for an equal state, almost 0 at the mean distance.
    `done` [T, E] marks the steps that ended an episode. States of earlier rollouts are not counted.
    """
    episode = torch.cat([torch.zeros_like(done[:1]), done]).long().cumsum(0).T  # [E, T + 1]
    points = states.transpose(0, 1)  # [E, T + 1, S]
    # One environment at a time: together, their distances would take more memory than the frames.
    nearest = torch.stack([_find_nearest_earlier(*rows, k=k) for rows in zip(points, episode, strict=True)])
    finite = nearest.isfinite()
    mean = torch.where(finite, nearest, 0.0).sum() / finite.sum().clamp(min=1)
    similarity = torch.where(finite, kernel / (nearest / mean.clamp(min=1e-12) + kernel), 0.0)
    return 1 + similarity.sum(2).T


def _find_nearest_earlier(points: Tensor, episode: Tensor, *, k: int) -> Tensor:
    """Return the squared distances [T + 1, k] of `points` [T + 1, S] to the nearest earlier ones of their episode."""
    order = torch.arange(len(points), device=points.device)
    is_earlier = (episode == episode.unsqueeze(1)) & (order < order.unsqueeze(1))  # [now, earlier]
    squared = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    return squared.masked_fill(~is_earlier, torch.inf).topk(min(k, len(points)), largest=False).values


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum().clamp(min=1)


@register_bonus("ride", RIDEConfig, data=("rollout",))
def build_ride(config: RIDEConfig, context: BuildContext) -> RIDE:
    """Build RIDE."""
    actions = context.actions
    return RIDE(context.num_views, context.image_shape, actions.size, config, discrete=actions.discrete)
