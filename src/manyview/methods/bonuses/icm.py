"""ICM (Pathak et al., 2017): error of a forward model in features that an inverse model trains.

As in URLB, both errors are L2 norms and r̂ is the log of the forward error. The encoder is the bonus's own, so that it
works with any representation.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyview.data.batch import Batch
from manyview.data.rollout_buffer import RolloutBuffer, map_features
from manyview.methods.bonuses.dynamics import DynamicsBonus, DynamicsConfig
from manyview.methods.interfaces import BuildContext
from manyview.methods.registry import register_bonus
from manyview.utils.validation import SettingError, check_positive


@dataclass(frozen=True, kw_only=True)
class ICMConfig(DynamicsConfig):
    """Settings of ICM."""

    error_scale: float = 1.0
    """Factor of the forward error inside the log."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "error_scale")
        if self.rewarded_state != "current":
            raise SettingError(
                "rewarded_state", f"expected current, since r̂ is of a whole transition, got {self.rewarded_state}"
            )


class ICM(DynamicsBonus):
    """Bonus `r̂ = log(1 + scale · |f(φ(s), a) - φ(s')|)` of a transition."""

    config: ICMConfig

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        current, following = self.encode(batch.views, batch.mask), self.encode(batch.next_views, batch.next_mask)
        return self.scale_reward(self._reward_errors(self.compute_forward_errors(current, batch.action, following)))

    @torch.no_grad()
    def compute_rollout(self, rollout: RolloutBuffer, features: Any | None, *, window: int | None) -> Tensor:  # noqa: ARG002
        """Return r̂ [T, E]: 0 for the last step of an episode, whose next state is not in the rollout."""
        encoded = rollout.encode_all(self.encode)  # [T + 1, E, ...]
        current = map_features(encoded, lambda part: part[:-1])
        following = map_features(encoded, lambda part: part[1:])
        errors = self.compute_forward_errors(current, rollout.action, following)
        return self.scale_reward(self._reward_errors(errors), ~rollout.done)

    def _reward_errors(self, errors: Tensor) -> Tensor:
        return (self.config.error_scale * errors).log1p()


@register_bonus("icm", ICMConfig)
def build_icm(config: ICMConfig, context: BuildContext) -> ICM:
    """Build ICM."""
    actions = context.actions
    return ICM(context.num_views, context.image_shape, actions.size, config, discrete=actions.discrete)
