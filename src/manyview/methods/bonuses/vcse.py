"""VCSE (Kim et al., 2023): entropy of the states given their values.

r̂ is an estimate by k nearest neighbors (Kraskov et al., 2004): a state pays if few states of about its value are near.
Values are those of a critic that learns the task's reward alone.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from manyview.data.batch import Batch, get_rewarded_views
from manyview.mem.neighbor_selection import measure_all_pairs
from manyview.methods.bonuses.dynamics import DynamicsBonus, DynamicsConfig
from manyview.methods.interfaces import BuildContext, RunSettings
from manyview.methods.registry import register_bonus
from manyview.methods.representations.pixel import PixelFeatures
from manyview.nn.heads import TwinCritic
from manyview.nn.optim import make_adam, optimizer_step
from manyview.nn.soft_update import make_target, soft_update
from manyview.utils.validation import SettingError, check_at_least, check_unit_interval

PROJECTION_DIM = 50
"""Size of the critics' projection of the policy's features, as in DrQ-v2: these may be a convolution's output."""
MIN_DIAMETER = 1e-5
"""Added to 2 ε: log of 0 is not finite."""


@dataclass(frozen=True, kw_only=True)
class VCSEConfig(DynamicsConfig):
    """Settings of VCSE."""

    beta0: float = 0.1
    """Initial weight β_0."""
    beta_decay: float = 0.0
    """Decay κ per unit."""
    latent_dim: int = 50
    """Feature dimension per view."""
    hidden: int = 1024
    """Hidden width of forward and inverse model and of the critics."""
    lr: float = 1e-4
    """Learning rate of encoder, models and critics."""
    k: int = 12
    """Rank of ε among the smallest distances of a state, that to itself included."""
    critic_tau: float = 0.01
    """Soft-update rate τ of the target critics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 2, "k")
        check_unit_interval(self, "critic_tau")

    def check(self, run: RunSettings) -> None:
        """Check that a batch has k rows."""
        super().check(run)
        if self.k > run.replay.batch_size:
            raise SettingError("k", f"expected at most replay.batch_size={run.replay.batch_size}, got {self.k}")


class VCSE(DynamicsBonus):
    """Bonus `r̂ = ψ(n_v + 1) / dim(φ) + log(2 ε)` with critics of the task's reward, on the policy's features.

    ε is the distance to the k-th neighbor under `max(|φ - φ'|, |v - v'|)`, and n_v the number of states with values
    nearer than ε. v is the standardized value of the policy's greedy action.

    PAPER: D49. The targets of these critics also use the greedy action, without the agent's noise.
    """

    config: VCSEConfig
    feature_source = "online"

    def __init__(
        self,
        num_views: int,
        image_shape: tuple[int, int, int],
        num_actions: int,
        config: VCSEConfig,
        *,
        state_dim: int,
    ) -> None:
        super().__init__(num_views, image_shape, num_actions, config, discrete=False)
        self.critic = TwinCritic(state_dim, num_actions, config.hidden, projection_dim=PROJECTION_DIM)
        self.target_critic = make_target(self.critic)
        self.critic_optimizer = make_adam(self.critic.parameters(), lr=config.lr)

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        views, mask, _ = get_rewarded_views(batch, self.config.rewarded_state)
        return self.scale_reward(compute_conditional_entropy(self.encode(views, mask), values, k=self.config.k))

    def predict_values(self, state: Tensor, action: Tensor) -> Tensor:
        values: Tensor = self.critic(state, action)
        return values

    def update_critic(self, batch: Batch, state: Tensor, next_state: Tensor, next_action: Tensor) -> dict[str, Tensor]:
        """Take one step of the critics on the task's reward and move their target networks."""
        with torch.no_grad():
            target = batch.reward_ext + batch.discount * self.target_critic(next_state, next_action).amin(0)
        predictions = self.critic(state.detach(), batch.action)
        loss = self.critic.compute_loss(predictions, target)
        grad_norm = optimizer_step(loss, self.critic_optimizer)
        soft_update(self.critic, self.target_critic, self.config.critic_tau)
        return {
            "vcse_critic_loss": loss.detach(),
            "vcse_critic_grad_norm": grad_norm,
            "vcse_value": predictions.detach().mean(),
        }


def compute_conditional_entropy(features: PixelFeatures, values: Tensor, *, k: int) -> Tensor:
    """Return the terms [B] of the entropy of φ given `values` [B], which are standardized.

    A batch counts each row as its own nearest neighbor, as the published code does. States are compared over the views
    that both have, scaled to those of the row.
    """
    num_views = features.mask.shape[1]
    points = features.state.unflatten(1, (num_views, -1)).transpose(0, 1)  # [V, B, P]
    state_distances = measure_all_pairs(points, features.mask.T)  # [B, B]
    values = F.layer_norm(values, values.shape)
    value_distances = (values.unsqueeze(1) - values).abs()
    nearest = torch.maximum(state_distances, value_distances).topk(min(k, len(values)), largest=False).values
    epsilon: Tensor = nearest.nan_to_num(posinf=0.0).amax(1, keepdim=True)  # a row without a view has no neighbor
    num_values = (value_distances < epsilon).sum(1)
    dim = points.shape[2] * features.mask.sum(1).clamp(min=1)
    conditional: Tensor = torch.digamma(num_values + 1.0) / dim
    return conditional + (2 * epsilon.squeeze(1) + MIN_DIAMETER).log()


@register_bonus("vcse", VCSEConfig, data=("replay",))
def build_vcse(config: VCSEConfig, context: BuildContext) -> VCSE:
    """Build VCSE."""
    state_dim = context.representation.state_dim
    return VCSE(context.num_views, context.image_shape, context.actions.size, config, state_dim=state_dim)
