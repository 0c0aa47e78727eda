"""Surprise: the error of a learned forward model is the bonus."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyview.data import Batch, Minibatch, RolloutBuffer
from manyview.data.batch import get_next
from manyview.methods import (
    Bonus,
    BonusConfig,
    BuildContext,
    PixelEncoder,
    PixelEncoderConfig,
    RunSettings,
    register_bonus,
)
from manyview.nn.heads import mlp
from manyview.nn.optim import make_adam, optimizer_step
from manyview.nn.trunks import Trunk
from manyview.utils.validation import SettingError, check_at_least, check_positive


@dataclass(frozen=True, kw_only=True)
class SurpriseConfig(BonusConfig):
    """Settings of the bonus; those of every bonus, such as `beta`, are inherited."""

    latent_dim: int = 32
    """Dimension of the random embedding, per view."""
    trunk: Trunk = "paper"
    """Convolutions of the random embedding."""
    hidden: int = 256
    """Hidden width of the forward model."""
    lr: float = 1e-3
    """Learning rate of the forward model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "latent_dim", "hidden")
        check_positive(self, "lr")

    def check(self, run: RunSettings) -> None:
        """Refuse runs that the bonus does not fit; `run` has the settings of all parts."""
        super().check(run)
        if self.rewarded_state == "next":
            raise SettingError("rewarded_state", "expected current, since surprise rewards a step, got next")


@register_bonus("surprise", SurpriseConfig)
class Surprise(Bonus):
    """Squared error of a forward model that predicts the next state in a random, frozen embedding."""

    config: SurpriseConfig
    uses_next_views = True  # `update` predicts the next state of a minibatch

    def __init__(self, config: SurpriseConfig, context: BuildContext) -> None:
        super().__init__()
        self.config, self.actions = config, context.actions
        encoder_config = PixelEncoderConfig(latent_dim=config.latent_dim, trunk=config.trunk)
        self.encoder = PixelEncoder(context.num_views, context.image_shape, encoder_config).requires_grad_(False)
        state_dim = self.encoder.state_dim
        self.forward_model = mlp(state_dim + self.actions.size, config.hidden, state_dim)
        self.optimizer = make_adam(self.forward_model.parameters(), lr=config.lr)

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        return self._compute_error(batch)

    @torch.no_grad()
    def compute_rollout(self, rollout: RolloutBuffer, features: Any | None, *, window: int | None) -> Tensor:  # noqa: ARG002
        states = rollout.encode_all(self.encoder.encode).state  # [T + 1, E, S]
        error = self._predict_error(states[:-1], rollout.action, states[1:])
        return torch.where(rollout.done, 0.0, error)  # the next state of a last step is of another episode

    def update(self, batch: Batch | Minibatch) -> dict[str, Tensor]:
        loss = self._compute_error(batch).mean()
        grad_norm = optimizer_step(loss, self.optimizer)
        return {"surprise_loss": loss.detach(), "surprise_grad_norm": grad_norm}

    def _compute_error(self, batch: Batch | Minibatch) -> Tensor:
        next_views, next_mask, has_next = get_next(batch)
        state, next_state = self.encoder.encode(batch.views, batch.mask), self.encoder.encode(next_views, next_mask)
        return torch.where(has_next, self._predict_error(state.state, batch.action, next_state.state), 0.0)

    def _predict_error(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        predicted: Tensor = self.forward_model(torch.cat([state, self.actions.to_vector(action)], -1))
        return (predicted - next_state).square().mean(-1)
