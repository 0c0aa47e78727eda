"""SAC (Haarnoja et al., 2018) from pixels on any representation, with any intrinsic reward.

As the paper's table has it: a target encoder beside the target critics, each with its own soft-update rate.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.agents.agent import no_bonus
from manyview.agents.networks import TwinCritic, adam, descend, frozen, mlp
from manyview.agents.off_policy import OffPolicyAgent
from manyview.agents.options import OffPolicyConfig
from manyview.data.batch import Batch
from manyview.mem.choices import refuse_below, refuse_not_positive, refuse_outside_0_to_1
from manyview.methods.follow import soft_update
from manyview.methods.protocols import Adversarial, Intrinsic, Representation

LOG_STD_LOW, LOG_STD_HIGH = -10.0, 2.0


@dataclass(frozen=True, kw_only=True)
class SACConfig(OffPolicyConfig):
    lr: float = 1e-3
    """Learning rate of actor and critic."""
    init_temperature: float = 0.1
    temperature_lr: float = 1e-4
    critic_rate: float = 0.01
    """How far the target critics follow."""
    encoder_rate: float = 0.05
    """How far the target encoder follows."""
    target_every_updates: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below(self, 1, "target_every_updates")
        refuse_not_positive(self, "lr", "temperature_lr", "init_temperature")
        refuse_outside_0_to_1(self, "critic_rate", "encoder_rate")


class SAC(OffPolicyAgent):
    """A squashed Gaussian actor and twin critics on `representation.encode(...).state`."""

    config: SACConfig
    updates: Tensor

    def __init__(
        self,
        representation: Representation,
        action_dim: int,
        config: SACConfig,
        *,
        intrinsic: Intrinsic | None = None,
        beta: Callable[[int], float] = no_bonus,
        seed: int = 0,
    ) -> None:
        super().__init__(representation, config, intrinsic=intrinsic, beta=beta, seed=seed)
        self.actor = mlp(representation.state_dim, config.hidden, 2 * action_dim)
        self.critic = TwinCritic(representation.state_dim, action_dim, config.hidden)
        self.target_critic = deepcopy(self.critic).requires_grad_(False)
        self.target_representation = deepcopy(representation).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.init_temperature)))
        self.target_entropy = -float(action_dim)
        self.learn_critic = adam([*representation.parameters(), *self.critic.parameters()], lr=config.lr)
        self.learn_actor = adam(self.actor.parameters(), lr=config.lr)
        self.learn_temperature = adam([self.log_temperature], lr=config.temperature_lr, betas=(0.5, 0.999))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def act(self, views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Tensor:  # noqa: ARG002
        state = self.representation.encode(views, mask).state
        return self._sampled(state)[0] if explore else self.actor(state).chunk(2, dim=1)[0].tanh()

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """One update at agent step `step`, critic and representation in one backward pass."""
        config, temperature = self.config, self.log_temperature.exp().detach()
        views, next_views = self.shifted(batch)

        features = self.representation.encode(views, batch.mask)
        with torch.no_grad():
            later = self.representation.encode(next_views, batch.next_mask)
            next_action, next_log_prob = self._sampled(later.state)
            next_state = self.target_representation.encode(next_views, batch.next_mask).state
            next_value = self.target_critic(next_state, next_action).amin(0) - temperature * next_log_prob
            reward_int = self.reward_int(batch, views, features)
            target = batch.reward_ext + self.beta(step) * reward_int + batch.discount * next_value

        values = self.critic(self.seen_by_critic(features.state), batch.action)  # [2, B]
        critic_loss = F.mse_loss(values, target.expand_as(values), reduction="none").mean(1).sum()
        representation_loss, metrics = self.representation.loss(features, later)
        critic_grad = descend(critic_loss + self.critic_scale * representation_loss, self.learn_critic)
        self.see_targets(target)
        if isinstance(self.representation, Adversarial):
            metrics |= self.representation.update_discriminator(features)

        state = features.state.detach()
        action, log_prob = self._sampled(state)
        with frozen(self.critic):
            actor_loss = (temperature * log_prob - self.critic(state, action).amin(0)).mean()
        descend(actor_loss, self.learn_actor)

        temperature_loss = -self.log_temperature.exp() * (log_prob.detach() + self.target_entropy).mean()
        descend(temperature_loss, self.learn_temperature)

        self.updates += 1
        if int(self.updates) % config.target_every_updates == 0:
            soft_update(self.critic, self.target_critic, config.critic_rate)
            soft_update(self.representation, self.target_representation, config.encoder_rate)
        own = {
            "critic_loss": critic_loss,
            "critic_grad": critic_grad,
            "target_std": self.target_moments.std.squeeze(0),
            "actor_loss": actor_loss,
            "value": values.mean(),
            "temperature": temperature,
            "entropy": -log_prob.mean(),
            "reward_int": reward_int.mean(),
        }
        return metrics | {name: value.detach() for name, value in own.items()}

    def _sampled(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """An action from the policy, and its log probability."""
        mean, log_std = self.actor(state).chunk(2, dim=1)
        log_std = LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (log_std.tanh() + 1)
        noise = self.noise(mean)
        raw = mean + log_std.exp() * noise
        normal = -0.5 * noise.pow(2) - log_std - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh²), in a form that does not lose its digits far out.
        squash = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh(), (normal - squash).sum(1)
