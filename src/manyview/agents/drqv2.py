"""DrQ-v2 (Yarats et al., 2021) on any representation, with any bonus.

DDPG with n-step returns, clipped double Q-learning, a target network for the critics and random-shift augmentation.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from manyview.agents.base import OffPolicyAgent, OffPolicyConfig, zero_beta
from manyview.data.batch import Batch
from manyview.mem.reward import total_reward
from manyview.methods.interfaces import Bonus, HasDiscriminator, Representation
from manyview.nn.heads import TwinCritic, mlp, saturation_penalty
from manyview.nn.optim import freeze, make_adam, optimizer_step
from manyview.nn.soft_update import soft_update
from manyview.utils.validation import check_at_least, check_positive, check_unit_interval


@dataclass(frozen=True, kw_only=True)
class DrQv2Config(OffPolicyConfig):
    """Settings of DrQ-v2."""

    lr: float = 1e-4
    """Learning rate of actor, critics and representation."""
    target_rate: float = 0.01
    """Soft-update rate τ of the target critics, per update."""
    std_start: float = 1.0
    """Initial standard deviation of the exploration noise."""
    std_end: float = 0.1
    """Final standard deviation of the exploration noise."""
    std_steps: int = 100_000
    """Agent steps over which the exploration noise decays linearly."""
    std_clip: float = 0.3
    """Bound on the noise in the critic's targets and in the actor's update."""
    saturation_coef: float = 0.0
    """Weight of a penalty on saturated tanh outputs of the policy (not in DrQ-v2); 0 turns it off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "std_steps")
        check_at_least(self, 0, "std_start", "std_end", "std_clip", "saturation_coef")
        check_positive(self, "lr")
        check_unit_interval(self, "target_rate")

    def compute_std(self, step: int) -> float:
        """Return the standard deviation of the exploration noise at agent step `step`."""
        progress = min(1.0, step / self.std_steps)
        return (1 - progress) * self.std_start + progress * self.std_end


class DrQv2(OffPolicyAgent):
    """Deterministic actor and twin critics on the representation's state."""

    config: DrQv2Config

    def __init__(
        self,
        representation: Representation,
        action_dim: int,
        config: DrQv2Config,
        *,
        bonus: Bonus | None = None,
        beta: Callable[[int], float] = zero_beta,
        seed: int = 0,
    ) -> None:
        super().__init__(representation, config, bonus=bonus, beta=beta, seed=seed)
        self.actor = mlp(representation.state_dim, config.hidden, action_dim)
        self.critic = TwinCritic(representation.state_dim, action_dim, config.hidden)
        self.target_critic = deepcopy(self.critic).requires_grad_(False)
        self.critic_optimizer = make_adam([*representation.parameters(), *self.critic.parameters()], lr=config.lr)
        self.actor_optimizer = make_adam(self.actor.parameters(), lr=config.lr)

    @torch.no_grad()
    def act(self, views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Tensor:
        mean: Tensor = self.actor(self.representation.encode(views, mask).state).tanh()
        return (mean + self.config.compute_std(step) * self.sample_noise(mean)).clamp(-1, 1) if explore else mean

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Take one update at agent step `step`: critics and representation, actor, target network."""
        config, std = self.config, self.config.compute_std(step)
        views, next_views = self.augment(batch)

        # n-step TD target of the total reward (Eq. 10), with clipped double Q from the target network.
        features = self.representation.encode(views, batch.mask)
        with torch.no_grad():
            next_features = self.representation.encode(next_views, batch.next_mask)
            reward_int = self.compute_bonus(batch, views, features)
            reward = total_reward(batch.reward_ext, reward_int, self.beta(step))
            next_action = self._add_noise(self.actor(next_features.state).tanh(), std)
            next_value = self.target_critic(next_features.state, next_action).amin(0)
            target = reward + batch.discount * next_value

        # Critics and representation in one backward pass.
        values = self.critic(self.critic_input(features.state), batch.action)  # [2, B]
        critic_loss = F.mse_loss(values, target.expand_as(values), reduction="none").mean(1).sum()
        representation_loss, metrics = self.representation.compute_loss(features, next_features)
        critic_grad_norm = optimizer_step(
            critic_loss + self.representation_loss_scale * representation_loss, self.critic_optimizer
        )
        self.update_target_stats(target)
        if isinstance(self.representation, HasDiscriminator):
            metrics |= self.representation.update_discriminator(features)

        # Actor, on detached features.
        state = features.state.detach()
        pre_tanh = self.actor(state)
        mean = pre_tanh.tanh()
        with freeze(self.critic):
            actor_loss = -self.critic(state, self._add_noise(mean, std)).amin(0).mean()
        if config.saturation_coef:
            actor_loss = actor_loss + config.saturation_coef * saturation_penalty(pre_tanh)
        optimizer_step(actor_loss, self.actor_optimizer)

        soft_update(self.critic, self.target_critic, config.target_rate)  # target network
        agent_metrics = {
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_grad_norm,
            "target_std": self.target_moments.std.squeeze(0),
            "actor_loss": actor_loss,
            "value": values.mean(),
            "action_spread": mean.std(0, correction=0).mean(),
            "reward_int": reward_int.mean(),
        }
        return metrics | {name: value.detach() for name, value in agent_metrics.items()}

    def _add_noise(self, mean: Tensor, std: float) -> Tensor:
        """Return `mean` plus clipped noise, bounded to (-1, 1)."""
        noise = (std * self.sample_noise(mean)).clamp(-self.config.std_clip, self.config.std_clip)
        # Straight-through bound: a saturated policy keeps its gradient.
        action = mean + noise
        return action + (action.clamp(-1 + 1e-6, 1 - 1e-6) - action).detach()
