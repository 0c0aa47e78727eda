"""RND (Burda et al., 2019): error of a predictor of a random, frozen network.

r̂ is large where the predictor has seldom been trained. As in URLB, the error is divided by its running standard
deviation. The convolutions are the bonus's own, so that it works with any representation.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from manyview.data.batch import Batch, Minibatch, get_rewarded_views
from manyview.data.rollout_buffer import RolloutBuffer
from manyview.methods.bonuses.update_proportion import BonusUpdateConfig, take_proportion
from manyview.methods.interfaces import Bonus, BonusConfig, BuildContext
from manyview.methods.registry import register_bonus
from manyview.nn.normalization import CumulativeMoments, RewardScale, RunningMoments
from manyview.nn.optim import make_adam, optimizer_step
from manyview.nn.trunks import Trunk, init_orthogonal, make_trunk
from manyview.utils.validation import MAX_UNITS, check_at_least, check_at_most, check_positive

MAX_INPUT = 5.0
"""Bound of the standardized pixels."""


@dataclass(frozen=True, kw_only=True)
class RNDConfig(BonusConfig, BonusUpdateConfig):
    """Settings of RND."""

    latent_dim: int = 512
    """Output dimension of both networks, per view."""
    hidden: int = 1024
    """Width of the predictor's two hidden layers."""
    trunk: Trunk = "paper"
    """Convolutions, see `representation=mem`."""
    views: tuple[str, ...] | None = None
    """Views to predict, by name; None predicts all."""
    lr: float = 1e-4
    """Learning rate of the predictor."""
    reward_scale: RewardScale = "std"
    """r̂ divided by the `std` of all so far, `raw`, or `centered`: standardized within the batch."""

    def __post_init__(self) -> None:
        BonusConfig.__post_init__(self)
        BonusUpdateConfig.__post_init__(self)
        check_at_least(self, 1, "latent_dim", "hidden")
        check_at_most(self, MAX_UNITS, "latent_dim", "hidden")
        check_positive(self, "lr")


class RNDErrors(NamedTuple):
    """Prediction errors of a batch."""

    errors: Tensor  # [B]


class RND(Bonus):
    """Bonus `r̂ = mean (predictor(o) - target(o))²` over features and present views, on the newest frames."""

    config: RNDConfig

    def __init__(
        self,
        num_views: int,
        frame_shape: tuple[int, int, int],
        config: RNDConfig | None = None,
        *,
        view_indices: list[int] | None = None,
    ) -> None:
        super().__init__()
        self.config = config = config or RNDConfig()
        self.view_indices, self.channels = view_indices or list(range(num_views)), frame_shape[0]
        trunk, flat_dim = make_trunk(frame_shape, config.trunk)
        self.target = nn.Sequential(trunk, nn.Linear(flat_dim, config.latent_dim))
        trunk, _ = make_trunk(frame_shape, config.trunk)
        self.predictor = nn.Sequential(
            trunk,
            nn.Linear(flat_dim, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.latent_dim),
        )
        self.apply(init_orthogonal)
        self.target.requires_grad_(False)
        self.pixel_moments = CumulativeMoments(self.channels)
        is_batch_scale = config.reward_scale == "centered"
        self.reward_moments = RunningMoments(1, decay=0.0) if is_batch_scale else CumulativeMoments(1)
        self.optimizer = make_adam(self.predictor.parameters(), lr=config.lr)

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        views, mask, _ = get_rewarded_views(batch, self.config.rewarded_state)
        if self.training:
            self._update_pixel_moments(views, mask)
        return self._scale(self.compute_errors(views, mask).errors)

    @torch.no_grad()
    def reward_states(self, views: Tensor, mask: Tensor, features: Any = None) -> Tensor:  # noqa: ARG002
        return self.reward_moments.scale_reward(self.compute_errors(views, mask).errors, self.config.reward_scale)

    @torch.no_grad()
    def compute_rollout(self, rollout: RolloutBuffer, features: Any | None, *, window: int | None) -> Tensor:  # noqa: ARG002
        errors: Tensor = rollout.encode_all(self.compute_errors).errors[: rollout.num_steps]
        return self._scale(errors.flatten()).view_as(errors)

    def update(self, batch: Batch | Minibatch) -> dict[str, Tensor]:
        """Take one step of the predictor on the rewarded states."""
        batch = take_proportion(batch, self.config.update_proportion)
        views, mask, _ = get_rewarded_views(batch, self.config.rewarded_state)
        if isinstance(batch, Minibatch):  # `compute` has counted those of a replay batch
            self._update_pixel_moments(views, mask)
        loss = self.compute_errors(views, mask).errors.mean()
        grad_norm = optimizer_step(loss, self.optimizer)
        return {"rnd_loss": loss.detach(), "rnd_grad_norm": grad_norm}

    def compute_errors(self, views: Tensor, mask: Tensor) -> RNDErrors:
        """Return the prediction errors [B] of the newest frames of `views` [B, V, C, H, W]."""
        images, present = views[:, self.view_indices, -self.channels :], mask[:, self.view_indices]
        moments = self.pixel_moments
        std = torch.where(moments.count > 0, moments.std.clamp(min=1.0), 255.0)  # nothing is known at first
        pixels = (images.flatten(0, 1).float() - moments.mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
        pixels = pixels.clamp(-MAX_INPUT, MAX_INPUT)
        difference = self.predictor(pixels).float() - self.target(pixels).float()
        errors = difference.square().mean(1).unflatten(0, images.shape[:2])  # [B, V]
        return RNDErrors(torch.where(present, errors, 0.0).sum(1) / present.sum(1).clamp(min=1))

    def _update_pixel_moments(self, views: Tensor, mask: Tensor) -> None:
        frames = views[:, self.view_indices, -self.channels :][mask[:, self.view_indices]]  # [N, C, H, W], present
        self.pixel_moments.update(frames.movedim(1, -1).reshape(-1, self.channels).float())

    def _scale(self, errors: Tensor) -> Tensor:
        if self.training:
            self.reward_moments.update(errors.unsqueeze(1))
        return self.reward_moments.scale_reward(errors, self.config.reward_scale)


@register_bonus("rnd", RNDConfig)
def build_rnd(config: RNDConfig, context: BuildContext) -> RND:
    """Build RND."""
    return RND(context.num_views, context.frame_shape, config, view_indices=context.find_views(config.views))
