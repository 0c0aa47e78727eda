"""SAC (Haarnoja et al., 2018) from pixels on any representation, with any bonus.

As in the paper's table there is a target network for the encoder and one for the critics, each with its own
soft-update rate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.agents.off_policy import OffPolicyAgent
from manyview.agents.off_policy_config import OffPolicyConfig
from manyview.data.batch import Batch
from manyview.data.batch_augmentation import RANDOM_SHIFT, ImageAugmentation
from manyview.mem.reward import total_reward
from manyview.methods.interfaces import Bonus, BuildContext, Representation
from manyview.methods.registry import register_agent
from manyview.nn.heads import mlp
from manyview.nn.optim import freeze, make_adam, optimizer_step
from manyview.nn.soft_update import make_target
from manyview.utils.validation import check_at_least, check_positive, check_unit_interval

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0
"""Bounds of the policy's log standard deviation."""


@dataclass(frozen=True, kw_only=True)
class SACConfig(OffPolicyConfig):
    """Settings of SAC."""

    lr: float = 1e-3
    """Learning rate of actor, critics and representation."""
    init_temperature: float = 0.1
    """Initial entropy temperature α."""
    temperature_lr: float = 1e-4
    """Learning rate of the temperature."""
    critic_tau: float = 0.01
    """Soft-update rate τ of the target critics."""
    encoder_tau: float = 0.05
    """Soft-update rate τ of the target encoder, which encodes s_{t+n} for the critic's targets; 1 uses the encoder
    itself."""
    target_every_updates: int = 2
    """Updates between two soft updates of the target networks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "target_every_updates")
        check_positive(self, "lr", "temperature_lr", "init_temperature")
        check_unit_interval(self, "critic_tau")


class SAC(OffPolicyAgent):
    """Squashed Gaussian actor and twin critics on the representation's state."""

    config: SACConfig
    updates: Tensor
    supports_state_vectors = True

    def __init__(
        self,
        representation: Representation,
        action_dim: int,
        config: SACConfig,
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
        self.actor = mlp(self.state_dim, config.hidden, 2 * action_dim, layer_norm=config.layer_norm)
        self.critic = self.make_critic()
        self.target_critic = make_target(self.critic)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.init_temperature)))
        self.target_entropy = -float(action_dim)
        self.critic_optimizer = self.make_critic_optimizer(self.critic, config.lr)
        self.actor_optimizer = make_adam(self.actor.parameters(), lr=config.lr)
        self.temperature_optimizer = make_adam([self.log_temperature], lr=config.temperature_lr, betas=(0.5, 0.999))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def act(
        self,
        views: Tensor,
        mask: Tensor,
        vectors: Tensor | None = None,
        *,
        step: int,  # noqa: ARG002
        explore: bool,
    ) -> Tensor:
        # PAPER: D46. An evaluation acts on the mean of a recurrent state; the authors sample it there too.
        state = self.encode_observation(views, mask, vectors, generator=self.generator if explore else None)
        action = self._sample_action(state)[0] if explore else self.compute_greedy_action(state)
        self.memory.store(previous_action=action)
        return action

    def compute_greedy_action(self, state: Tensor) -> Tensor:
        action: Tensor = self.actor(state).chunk(2, dim=1)[0].tanh()
        return action

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Take one update at agent step `step`: critics, representation, actor, temperature, targets.

        A recurrent representation takes a further step at the end, by its own loss.
        """
        config, temperature = self.config, self.log_temperature.exp().detach()
        encoded = self.encode_batch(batch)
        features, inputs = encoded.features, self.get_training_inputs(encoded)
        predictions = self.critic(self.critic_input(inputs.states), inputs.repeat(batch.action))
        values = predictions[:, : len(batch.action)]  # [2, B], of all views

        # Soft n-step TD target of the total reward (Eq. 10), with clipped double Q from the target networks.
        with torch.no_grad():
            next_action, next_log_prob = self._sample_action(encoded.next_state)
            next_value = self.target_critic(encoded.target_next_state, next_action).amin(0)
            next_value = next_value - temperature * next_log_prob
            reward_int = self.compute_bonus(batch, encoded, values)
            reward = total_reward(batch.reward_ext, reward_int, self.beta(step))
            target = reward + batch.discount * next_value

        # Critics and representation in one backward pass.
        critic_loss = self.critic.compute_loss(predictions, inputs.repeat(target), inputs.weights)
        representation_loss, metrics = self.representation.compute_loss(features, encoded.next_features)
        critic_grad_norm = optimizer_step(
            critic_loss + self.representation_loss_scale * representation_loss, self.critic_optimizer
        )
        self.update_target_stats(target)
        metrics |= self.update_representation(batch, features)

        # Actor and temperature, on detached features; the actor's critics see all views.
        action, log_prob = self._sample_action(inputs.states.detach())
        state = inputs.repeat(encoded.state.detach())
        with freeze(self.critic):
            actor_loss = inputs.average(temperature * log_prob - self.critic(state, action).amin(0))
        optimizer_step(actor_loss, self.actor_optimizer)

        temperature_loss = -self.log_temperature.exp() * inputs.average(log_prob.detach() + self.target_entropy)
        optimizer_step(temperature_loss, self.temperature_optimizer)

        metrics |= self.update_bonus(batch) | self.update_bonus_critic(batch, encoded)

        self.updates += 1
        if int(self.updates) % config.target_every_updates == 0:
            self.update_targets(self.critic, self.target_critic, critic_tau=config.critic_tau)
        metrics |= self.update_sequences(encoded)
        agent_metrics = {
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_grad_norm,
            "target_std": self.target_moments.std.squeeze(0),
            "actor_loss": actor_loss,
            "value": values.mean(),
            "temperature": temperature,
            "entropy": -inputs.average(log_prob),
            "reward_int": reward_int.mean(),
        }
        return metrics | {name: value.detach() for name, value in agent_metrics.items()}

    def _sample_action(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions [B, A] from the policy; return them and their log-probabilities [B]."""
        mean, log_std = self.actor(state).chunk(2, dim=1)
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std.tanh() + 1)
        noise = self.sample_noise(mean)
        pre_tanh = mean + log_std.exp() * noise
        normal_log_prob = -0.5 * noise.pow(2) - log_std - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh²), in a form that is numerically stable for large inputs.
        log_det_tanh = 2 * (math.log(2) - pre_tanh - F.softplus(-2 * pre_tanh))
        return pre_tanh.tanh(), (normal_log_prob - log_det_tanh).sum(1)


@register_agent("sac", SACConfig, data=("replay", "sequences"))
def build_sac(config: SACConfig, context: BuildContext) -> SAC:
    """Build SAC."""
    return SAC.build(config, context)
