"""DrQ-v2 (Yarats et al., 2021) on any representation, with any bonus.

DDPG with n-step returns, clipped double Q-learning, a target network for the critics and random-shift augmentation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manyview.agents.off_policy import OffPolicyAgent
from manyview.agents.off_policy_config import OffPolicyConfig
from manyview.data.batch import Batch
from manyview.data.batch_augmentation import RANDOM_SHIFT, ImageAugmentation
from manyview.mem.reward import total_reward
from manyview.methods.interfaces import Bonus, BuildContext, Representation, RunSettings
from manyview.methods.registry import register_agent
from manyview.nn.heads import Head, make_projection, mlp, saturation_penalty
from manyview.nn.optim import freeze, make_adam, optimizer_step
from manyview.nn.soft_update import make_target
from manyview.utils.validation import (
    MAX_UNITS,
    SettingError,
    check_at_least,
    check_at_most,
    check_positive,
    check_unit_interval,
)

Structure = Literal["shared", "official"]


@dataclass(frozen=True, kw_only=True)
class DrQv2Config(OffPolicyConfig):
    """Settings of DrQ-v2."""

    lr: float = 1e-4
    """Learning rate of actor, critics and representation."""
    structure: Structure = "shared"
    """Place of the projection of the convolutions' output: in the representation, `shared` by actor and critics, or, as
    `official` in DrQ-v2's published code, one each in actor, critics and target critics."""
    projection_dim: int = 50
    """Size of the projections of `official`."""
    critic_tau: float = 0.01
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
        check_at_least(self, 1, "std_steps", "projection_dim")
        check_at_most(self, MAX_UNITS, "projection_dim")
        check_at_least(self, 0, "std_start", "std_end", "std_clip", "saturation_coef")
        check_positive(self, "lr")
        check_unit_interval(self, "critic_tau")
        if self.structure == "shared" and self.projection_dim != DrQv2Config.projection_dim:
            raise SettingError("projection_dim", f"expected structure=official, got shared with {self.projection_dim}")

    def check(self, run: RunSettings) -> None:
        """Check that the official structure gets the convolutions' output, and projects it once."""
        projection = getattr(run.representation, "projection", None)
        if self.structure == "official" and projection is not False:
            got = (
                f"representation={run.representation_name}" if projection is None else "representation.projection=true"
            )
            raise ValueError(
                "agent.structure=official projects the convolutions' output itself: expected representation=pixel with "
                f"representation.projection=false, got {got}"
            )

    def compute_std(self, step: int) -> float:
        """Return the standard deviation of the exploration noise at agent step `step`."""
        progress = min(1.0, step / self.std_steps)
        return (1 - progress) * self.std_start + progress * self.std_end


class DrQv2(OffPolicyAgent):
    """Deterministic actor and twin critics on the representation's state."""

    config: DrQv2Config
    supports_state_vectors = True

    def __init__(
        self,
        representation: Representation,
        action_dim: int,
        config: DrQv2Config,
        *,
        bonus: Bonus | None = None,
        beta: Callable[[int], float] | None = None,
        augmentation: ImageAugmentation = RANDOM_SHIFT,
        seed: int = 0,
        vector_size: int = 0,
    ) -> None:
        super().__init__(
            representation,
            action_dim,
            config,
            bonus=bonus,
            beta=beta,
            augmentation=augmentation,
            seed=seed,
            vector_size=vector_size,
        )
        if vector_size and config.structure == "official":
            raise ValueError(
                "agent.structure=official does not fit state vectors: it projects the whole state, and among thousands "
                "of outputs of the convolutions a few numbers would vanish. Set agent.structure=shared"
            )
        self.actor = self._make_actor()
        projection_dim = config.projection_dim if config.structure == "official" else None
        self.critic = self.make_critic(projection_dim=projection_dim)
        self.target_critic = make_target(self.critic)
        self.critic_optimizer = self.make_critic_optimizer(self.critic, config.lr)
        self.actor_optimizer = make_adam(self.actor.parameters(), lr=config.lr)

    @torch.no_grad()
    def act(self, views: Tensor, mask: Tensor, vectors: Tensor | None = None, *, step: int, explore: bool) -> Tensor:
        mean = self.compute_greedy_action(self.encode_observation(views, mask, vectors))
        if not explore:
            return mean
        return (mean + self.config.compute_std(step) * self.sample_noise(mean)).clamp(-1, 1)

    def compute_greedy_action(self, state: Tensor) -> Tensor:
        action: Tensor = self.actor(state).tanh()
        return action

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Take one update at agent step `step`: critics and representation, actor, target network."""
        config, std = self.config, self.config.compute_std(step)
        encoded = self.encode_batch(batch)
        features, inputs = encoded.features, self.get_training_inputs(encoded)
        predictions = self.critic(self.critic_input(inputs.states), inputs.repeat(batch.action))
        values = predictions[:, : len(batch.action)]  # [2, B], of all views

        # n-step TD target of the total reward (Eq. 10), with clipped double Q from the target network.
        with torch.no_grad():
            reward_int = self.compute_bonus(batch, encoded, values)
            reward = total_reward(batch.reward_ext, reward_int, self.beta(step))
            next_action = self._add_noise(self.actor(encoded.next_state).tanh(), std)
            next_value = self.target_critic(encoded.target_next_state, next_action).amin(0)
            target = reward + batch.discount * next_value

        # Critics and representation in one backward pass.
        critic_loss = self.critic.compute_loss(predictions, inputs.repeat(target), inputs.weights)
        representation_loss, metrics = self.representation.compute_loss(features, encoded.next_features)
        critic_grad_norm = optimizer_step(
            critic_loss + self.representation_loss_scale * representation_loss, self.critic_optimizer
        )
        self.update_target_stats(target)
        metrics |= self.update_representation(batch, features)

        # Actor, on detached features; its critics see all views.
        pre_tanh = self.actor(inputs.states.detach())
        mean, state = pre_tanh.tanh(), inputs.repeat(encoded.state.detach())
        with freeze(self.critic):
            actor_loss = -inputs.average(self.critic(state, self._add_noise(mean, std)).amin(0))
        if config.saturation_coef:
            actor_loss = actor_loss + config.saturation_coef * saturation_penalty(pre_tanh, inputs.weights)
        optimizer_step(actor_loss, self.actor_optimizer)

        metrics |= self.update_bonus(batch) | self.update_bonus_critic(batch, encoded)

        self.update_targets(self.critic, self.target_critic, critic_tau=config.critic_tau)
        agent_metrics = {
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_grad_norm,
            "target_std": self.target_moments.std.squeeze(0),
            "actor_loss": actor_loss,
            "value": values.mean(),
            "action_spread": mean[: len(batch.action)].std(0, correction=0).mean(),
            "reward_int": reward_int.mean(),
        }
        return metrics | {name: value.detach() for name, value in agent_metrics.items()}

    def _make_actor(self) -> Head:
        config, state_dim = self.config, self.state_dim
        if config.structure == "shared":
            return mlp(state_dim, config.hidden, self.action_dim, layer_norm=config.layer_norm)
        head = mlp(config.projection_dim, config.hidden, self.action_dim, layer_norm=config.layer_norm)
        return Head(*make_projection(state_dim, config.projection_dim), *head)

    def _add_noise(self, mean: Tensor, std: float) -> Tensor:
        """Return `mean` plus clipped noise, bounded to (-1, 1)."""
        noise = (std * self.sample_noise(mean)).clamp(-self.config.std_clip, self.config.std_clip)
        # Straight-through bound: a saturated policy keeps its gradient.
        action = mean + noise
        return action + (action.clamp(-1 + 1e-6, 1 - 1e-6) - action).detach()


@register_agent("drqv2", DrQv2Config, data="replay")
def build_drqv2(config: DrQv2Config, context: BuildContext) -> DrQv2:
    """Build DrQ-v2."""
    return DrQv2.build(config, context)
