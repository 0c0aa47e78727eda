"""DrQ-v2 (Yarats et al., 2021) on any representation, with any intrinsic reward."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from manyview.agents.agent import no_bonus
from manyview.agents.networks import TwinCritic, adam, descend, frozen, mlp, saturation
from manyview.agents.off_policy import OffPolicyAgent
from manyview.agents.options import OffPolicyConfig
from manyview.data.batch import Batch
from manyview.mem.choices import refuse_below, refuse_not_positive, refuse_outside_0_to_1
from manyview.methods.follow import soft_update
from manyview.methods.protocols import Adversarial, Intrinsic, Representation


@dataclass(frozen=True, kw_only=True)
class DrQv2Config(OffPolicyConfig):
    lr: float = 1e-4
    target_rate: float = 0.01
    """How far the target critic follows at each update."""
    std_start: float = 1.0
    std_end: float = 0.1
    std_steps: int = 100_000
    """Agent steps over which the exploration noise falls."""
    std_clip: float = 0.3
    """Bound of the noise in the targets and in the actor's own update."""
    saturation_coef: float = 0.0
    """Weight of a push back from the flat ends of the policy's tanh (not in DrQ-v2); 0 turns it off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below(self, 1, "std_steps")
        refuse_below(self, 0, "std_start", "std_end", "std_clip", "saturation_coef")
        refuse_not_positive(self, "lr")
        refuse_outside_0_to_1(self, "target_rate")

    def std(self, step: int) -> float:
        """σ of the exploration noise at an agent step."""
        share = min(1.0, step / self.std_steps)
        return (1 - share) * self.std_start + share * self.std_end


class DrQv2(OffPolicyAgent):
    """Actor and twin critics on `representation.encode(...).state`, trained together with it."""

    config: DrQv2Config

    def __init__(
        self,
        representation: Representation,
        action_dim: int,
        config: DrQv2Config,
        *,
        intrinsic: Intrinsic | None = None,
        beta: Callable[[int], float] = no_bonus,
        seed: int = 0,
    ) -> None:
        super().__init__(representation, config, intrinsic=intrinsic, beta=beta, seed=seed)
        self.actor = mlp(representation.state_dim, config.hidden, action_dim)
        self.critic = TwinCritic(representation.state_dim, action_dim, config.hidden)
        self.target = deepcopy(self.critic).requires_grad_(False)
        self.learn_critic = adam([*representation.parameters(), *self.critic.parameters()], lr=config.lr)
        self.learn_actor = adam(self.actor.parameters(), lr=config.lr)

    @torch.no_grad()
    def act(self, views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Tensor:
        mean: Tensor = self.actor(self.representation.encode(views, mask).state).tanh()
        return (mean + self.config.std(step) * self.noise(mean)).clamp(-1, 1) if explore else mean

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """One update at agent step `step`, critic and representation in one backward pass."""
        config, std = self.config, self.config.std(step)
        views, next_views = self.shifted(batch)

        features = self.representation.encode(views, batch.mask)
        with torch.no_grad():
            later = self.representation.encode(next_views, batch.next_mask)
            reward_int = self.reward_int(batch, views, features)
            reward = batch.reward_ext + self.beta(step) * reward_int
            target = reward + batch.discount * self.target(
                later.state, self._noisy(self.actor(later.state).tanh(), std)
            ).amin(0)

        values = self.critic(self.seen_by_critic(features.state), batch.action)  # [2, B]
        critic_loss = F.mse_loss(values, target.expand_as(values), reduction="none").mean(1).sum()
        representation_loss, metrics = self.representation.loss(features, later)
        critic_grad = descend(critic_loss + self.critic_scale * representation_loss, self.learn_critic)
        self.see_targets(target)
        if isinstance(self.representation, Adversarial):
            metrics |= self.representation.update_discriminator(features)

        state = features.state.detach()
        raw = self.actor(state)
        mean = raw.tanh()
        with frozen(self.critic):
            actor_loss = -self.critic(state, self._noisy(mean, std)).amin(0).mean()
        if config.saturation_coef:
            actor_loss = actor_loss + config.saturation_coef * saturation(raw)
        descend(actor_loss, self.learn_actor)

        soft_update(self.critic, self.target, config.target_rate)
        own = {
            "critic_loss": critic_loss,
            "critic_grad": critic_grad,
            "target_std": self.target_moments.std.squeeze(0),
            "actor_loss": actor_loss,
            "value": values.mean(),
            "action_spread": mean.std(0, correction=0).mean(),
            "reward_int": reward_int.mean(),
        }
        return metrics | {name: value.detach() for name, value in own.items()}

    def _noisy(self, mean: Tensor, std: float) -> Tensor:
        """An action near `mean`, within its bounds."""
        noise = (std * self.noise(mean)).clamp(-self.config.std_clip, self.config.std_clip)
        # The gradient of the mean goes through the bound, or a saturated policy would never come back.
        action = mean + noise
        return action + (action.clamp(-1 + 1e-6, 1 - 1e-6) - action).detach()
