"""Base of bonuses whose features φ a forward and an inverse model train (Pathak et al., 2017): ICM, APT, VCSE, RIDE."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.data.action_spec import ActionSpec
from manyview.data.batch import Batch, Minibatch, get_next
from manyview.methods.bonuses.update_proportion import BonusUpdateConfig, take_proportion
from manyview.methods.interfaces import Bonus, BonusConfig
from manyview.methods.representations.pixel import PixelEncoder, PixelEncoderConfig, PixelFeatures
from manyview.nn.heads import Head
from manyview.nn.normalization import RewardScale, make_reward_moments
from manyview.nn.optim import make_adam, optimizer_step
from manyview.nn.trunks import Trunk, init_orthogonal
from manyview.utils.validation import MAX_UNITS, check_at_least, check_at_most, check_positive


@dataclass(frozen=True, kw_only=True)
class DynamicsConfig(BonusConfig, BonusUpdateConfig):
    """Settings of the features and their two models."""

    latent_dim: int = 512
    """Feature dimension per view."""
    trunk: Trunk = "paper"
    """Convolutions, see `representation=mem`."""
    hidden: int = 1024
    """Hidden width of forward and inverse model."""
    lr: float = 1e-4
    """Learning rate of encoder and models."""
    inverse_coef: float = 1.0
    """Weight of the inverse model's loss (predict the action from both states); at 0 the features can collapse."""
    forward_coef: float = 1.0
    """Weight of the forward model's loss (predict the next state)."""
    reward_scale: RewardScale = "raw"
    """r̂ as it is (`raw`), divided by its running `std`, or `centered`: standardized within the batch or rollout."""

    def __post_init__(self) -> None:
        BonusConfig.__post_init__(self)
        BonusUpdateConfig.__post_init__(self)
        check_at_least(self, 1, "latent_dim", "hidden")
        check_at_most(self, MAX_UNITS, "latent_dim", "hidden")
        check_at_least(self, 0, "inverse_coef", "forward_coef")
        check_positive(self, "lr")


class DynamicsBonus(Bonus):
    """Encoder φ of all views with a forward model φ(s), a → φ(s') and an inverse model φ(s), φ(s') → a."""

    config: DynamicsConfig
    uses_next_views = True
    metric_prefix: ClassVar[str] = "icm"

    def __init__(
        self,
        num_views: int,
        image_shape: tuple[int, int, int],
        num_actions: int,
        config: DynamicsConfig,
        *,
        discrete: bool = True,
    ) -> None:
        super().__init__()
        self.config, self.num_views, self.actions = config, num_views, ActionSpec(num_actions, discrete)
        encoder_config = PixelEncoderConfig(latent_dim=config.latent_dim, trunk=config.trunk)
        self.encoder = PixelEncoder(num_views, image_shape, encoder_config)
        size, hidden = self.encoder.state_dim, config.hidden
        self.forward_model = Head(nn.Linear(size + num_actions, hidden), nn.ReLU(), nn.Linear(hidden, size))
        self.inverse_model = Head(nn.Linear(2 * size, hidden), nn.ReLU(), nn.Linear(hidden, num_actions))
        self.apply(init_orthogonal)
        self.reward_moments = make_reward_moments(config.reward_scale)
        self.optimizer = make_adam(self.parameters(), lr=config.lr)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> PixelFeatures:
        """Embed `views` [B, V, C, H, W] by φ."""
        return self.encoder.encode(views, mask)

    def encode_next(self, views: Tensor, mask: Tensor | None = None) -> PixelFeatures:
        """Embed s' for the losses: its convolutions get no gradient, so they do not move toward the prediction."""
        with torch.no_grad():
            convolved = self.encoder.convolve(views)
        return self.encoder.project(convolved, mask)

    def compute_forward_errors(self, features: PixelFeatures, action: Tensor, next_features: PixelFeatures) -> Tensor:
        """Return the distances [...] of the forward model's predictions to φ(s'), for features [..., V * P].

        PAPER: D48. They are over the views that both states have, scaled to all views: a camera that fails or returns
        does not look like a surprise.
        """
        predicted = self.forward_model(torch.cat([features.state, self.actions.to_vector(action)], -1))
        return self.measure_distances(PixelFeatures(predicted, features.mask), next_features)

    def measure_distances(self, features: PixelFeatures, others: PixelFeatures) -> Tensor:
        """Return the distances [...] of features [..., V * P] over the views that both have, scaled to all views."""
        difference = (features.state - others.state).unflatten(-1, (self.num_views, -1))  # [..., V, P]
        present = features.mask & others.mask
        distance: Tensor = torch.where(present.unsqueeze(-1), difference, 0.0).flatten(-2).norm(dim=-1)
        return distance * (self.num_views / present.sum(-1).clamp(min=1)).sqrt()

    def compute_inverse_errors(self, features: PixelFeatures, action: Tensor, next_features: PixelFeatures) -> Tensor:
        """Return the errors [B] of the predicted actions: cross-entropy, or distances of continuous actions."""
        predicted = self.inverse_model(torch.cat([features.state, next_features.state], 1))
        if self.actions.discrete:
            return F.cross_entropy(predicted, action, reduction="none")
        distance: Tensor = (predicted.tanh() - self.actions.to_vector(action)).norm(dim=1)
        return distance

    def update(self, batch: Batch | Minibatch) -> dict[str, Tensor]:
        """Take one step of φ and both models on the rows whose next state is in the same episode."""
        batch = take_proportion(batch, self.config.update_proportion)
        next_views, next_mask, has_next = get_next(batch)
        steps = self.encode(batch.views, batch.mask), batch.action, self.encode_next(next_views, next_mask)
        forward_loss = _masked_mean(self.compute_forward_errors(*steps), has_next)
        inverse_loss = _masked_mean(self.compute_inverse_errors(*steps), has_next)
        loss = self.config.forward_coef * forward_loss + self.config.inverse_coef * inverse_loss
        grad_norm = optimizer_step(loss, self.optimizer)
        metrics = {"forward_loss": forward_loss.detach(), "inverse_loss": inverse_loss.detach(), "grad_norm": grad_norm}
        return {f"{self.metric_prefix}_{name}": value for name, value in metrics.items()}

    def scale_reward(self, reward: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return `reward` [B], or [T, E] of a rollout, in `reward_scale`; 0 where it is not `valid`."""
        if valid is None:
            valid = torch.ones_like(reward, dtype=torch.bool)
        if self.training:
            num_batches = reward.shape[1] if reward.dim() == 2 else 1
            self.reward_moments.update(reward.reshape(-1, 1), valid.reshape(-1, 1), num_batches=num_batches)
        return torch.where(valid, self.reward_moments.scale_reward(reward, self.config.reward_scale), 0.0)


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)
