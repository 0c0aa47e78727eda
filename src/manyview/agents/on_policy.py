"""Base class of agents that learn from rollouts: what a trainer of rollouts calls and reads."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from manyview.agents.base import Agent, compute_in_float32
from manyview.agents.distributions import ActionDistribution
from manyview.data.batch import Minibatch
from manyview.data.rollout_buffer import RolloutBuffer
from manyview.methods.interfaces import RegularizesPolicy
from manyview.utils.validation import (
    MAX_UNITS,
    SettingError,
    check_at_least,
    check_at_most,
    check_choices,
    check_unit_interval,
)

Neighbors = Literal["env", "pooled"]


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig:
    """Settings that every agent of rollouts has."""

    epochs: int = 3
    """Passes over each rollout."""
    batch_size: int = 256
    """Rows per minibatch."""
    neighbors: Neighbors = "env"
    """Search set of r̂'s nearest neighbors: the rollout of the same environment (`env`) or of all (`pooled`)."""
    window: int = 2_048
    """Rows to search for each row with `pooled`."""
    vector_dim: int = 64
    """Width of the encoder of state vectors (`env.state`)."""
    view_dropout: float = 0.0
    """Probability with which each view of an environment is hidden for a rollout, from policy, losses and bonus; one
    view is always kept."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "epochs", "window", "vector_dim")
        check_at_most(self, MAX_UNITS, "vector_dim")
        check_at_least(self, 2, "batch_size")  # one row has no standard deviation
        check_unit_interval(self, "view_dropout")
        if self.neighbors == "env" and self.window != OnPolicyConfig.window:
            raise SettingError("window", f"expected neighbors=pooled, got env with {self.window}")


class OnPolicyAgent(Agent):
    """Agent that learns from rollouts.

    A trainer calls `act_and_value` at every step, `compute_advantages` once the rollout is full, and `update` for each
    of its minibatches.
    """

    config: OnPolicyConfig

    def act_and_value(
        self, views: Tensor, mask: Tensor, vectors: Tensor | None = None, *, step: int
    ) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Return sampled actions, their log-probabilities [B], values [B] and the encoded features."""
        raise NotImplementedError

    def predict_values(self, views: Tensor, mask: Tensor, vectors: Tensor | None = None) -> Tensor:
        """Return the values [B] of `views` [B, V, C, H, W] and raw state `vectors` [B, D]."""
        raise NotImplementedError

    def compute_advantages(self, rollout: RolloutBuffer, elapsed: int) -> dict[str, Tensor]:
        """Store bonus and advantages in a full rollout and return metrics.

        `elapsed` is the count that β decays with, in the unit of its schedule.
        """
        raise NotImplementedError

    def update(self, batch: Minibatch) -> dict[str, Tensor]:
        """Take one gradient update on a minibatch and return its metrics.

        Raises `NonFiniteError` instead of taking a step along a gradient that is not finite.
        """
        raise NotImplementedError

    def evaluate(self, state: Tensor) -> tuple[ActionDistribution, Tensor]:
        """Return the distributions of actions and the values [B] of the policy's states [B, S]."""
        raise NotImplementedError

    def reset_episodes(self) -> None:
        """Forget the running episodes: every environment starts a new one."""

    @property
    def stores_features(self) -> bool:
        """True if the features of every step of a rollout are needed later: by the bonus or the auxiliary loss."""
        return self.representation.uses_next_features or (
            self.bonus is not None and self.bonus.feature_source is not None
        )

    @torch.no_grad()
    def compute_bonus(self, rollout: RolloutBuffer) -> Tensor:
        """Return r̂ [T, E] of a full rollout, zeros without a bonus.

        Neighbors are searched in each environment's rollout or, `pooled`, in all of them.
        """
        if self.bonus is None:
            return torch.zeros_like(rollout.reward_ext)
        window = self.config.window if self.config.neighbors == "pooled" else None
        features = rollout.features if self.bonus.feature_source else None
        with compute_in_float32(rollout.reward_ext):
            return self.bonus.compute_rollout(rollout, features, window=window)

    def start_updates(self, rollout: RolloutBuffer) -> dict[str, Tensor]:
        """Give the returns of a full rollout to a representation that asks for them, and return its metrics."""
        representation = self.representation
        if not isinstance(representation, RegularizesPolicy):
            return {}
        return representation.start_updates(rollout.value + rollout.advantage)

    def compute_representation_loss(
        self, batch: Minibatch, features: Any, distribution: ActionDistribution, value: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses of the representation, of features and of policy and value function, and metrics."""
        representation = self.representation
        loss, metrics = representation.compute_loss(features, batch.next_features)
        if not isinstance(representation, RegularizesPolicy):
            return loss, metrics

        def evaluate(state: Tensor) -> tuple[ActionDistribution, Tensor]:
            return self.evaluate(self.join_vectors(state, batch.vectors))

        policy_loss, policy_metrics = representation.compute_policy_loss(batch, distribution, value, evaluate)
        return loss + policy_loss, metrics | policy_metrics
