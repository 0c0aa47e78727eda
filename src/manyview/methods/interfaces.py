"""Interfaces between agents, representations and bonuses.

An agent's update is `features = representation.encode(views, mask)`, act on `features.state`, add
`representation.compute_loss(features, next_features)` to the critic's loss in the same backward pass, and train on
`reward_ext + beta(t) * bonus.compute_reward(...)`. The protocols are structural: MEM fits both without importing them.
"""

from collections.abc import Iterator
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor, nn


class EncoderOutput(Protocol):
    """Minimal output of an encoder; each method adds fields."""

    @property
    def state(self) -> Tensor: ...  # [B, S], input of the policy


class Representation(Protocol):
    """Encoder of the policy's observations, with an auxiliary loss."""

    @property
    def state_dim(self) -> int: ...  # S

    def encode(self, views: Tensor, mask: Tensor | None = None) -> EncoderOutput:
        """Encode `views` [B, V, C, H, W] uint8; `mask` [B, V] bool marks present views (default: all)."""

    def compute_loss(self, features: Any, next_features: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the auxiliary loss, added to the critic's, and its metrics.

        `next_features` are those of s_{t+n}, without gradient. PPO passes the features of the next step if the
        representation is also the bonus, and None otherwise.
        """

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def requires_grad_(self, requires_grad: bool = True) -> Self: ...


class Bonus(Protocol):
    """Intrinsic reward of a state, by its novelty among other states."""

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Any:
        """Encode views to the features that `compute_reward` takes."""

    def compute_reward(
        self,
        features: Any,
        *,
        indices: Tensor | None = None,
        window: int | None = None,
        num_rollouts: int = 1,
        num_batches: int = 1,
    ) -> Tensor:
        """Return the intrinsic reward r̂ [B], without gradient.

        Args:
            features: of B states.
            indices: [B] replay buffer indices: copies of a transition are not its neighbors.
            window: for rollouts, search only this many rows near each row.
            num_rollouts: for rollouts, number of environments whose rows alternate; each is searched separately.
            num_batches: number of batches by which running scales advance.

        """


@runtime_checkable
class EpisodicBonus(Protocol):
    """Intrinsic reward of a step by its novelty within the episode, for rollouts."""

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Any:
        """Encode views to the features that `compute_episodic_reward` takes."""

    def compute_episodic_reward(self, features: Any, done: Tensor) -> Tensor:
        """Return r̂ [T, E] for features [T + 1, E, ...] and `done` [T, E].

        The last features are those after the last step.
        """

    def update(self, batch: Any) -> dict[str, Tensor]:
        """Take one step of the bonus's networks on a minibatch of a rollout and return metrics."""


@runtime_checkable
class HasDiscriminator(Protocol):
    """Representation with a discriminator, which is updated after the encoder."""

    def update_discriminator(self, features: Any) -> dict[str, Tensor]:
        """Take one step of the discriminator and return metrics."""


@runtime_checkable
class HasDiagnostics(Protocol):
    """Representation with health meters of features and bonus, as `mem.Diagnostics`."""

    def diagnose(self, features: Any, *, beta: float, indices: Tensor | None = None) -> Any:
        """Compute the health meters of a batch, without changing any state."""
