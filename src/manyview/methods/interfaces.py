"""The seam: what an agent expects of a representation and of an intrinsic reward.

An agent's update is `features = representation.encode(views, mask)`, act on `features.state`, add
`representation.compute_loss(features, next_features)` to the critic's loss in the same backward pass, and train on
`reward_ext + beta(t) * bonus.compute_reward(...)`. The protocols are structural: MEM fits both without importing them.
"""

from collections.abc import Iterator
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor, nn


class EncoderOutput(Protocol):
    """What any encoder makes of views. Methods know more about their own."""

    @property
    def state(self) -> Tensor: ...  # [B, S], what the policy acts on


class Representation(Protocol):
    """What the policy sees, and how it is learned."""

    @property
    def state_dim(self) -> int: ...

    def encode(self, views: Tensor, mask: Tensor | None = None) -> EncoderOutput:
        """`views` [B, V, C, H, W] uint8 and `mask` [B, V], to what `compute_loss` takes."""

    def compute_loss(self, features: Any, next_features: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """To be added to the critic's loss; `next_features` are the features n steps on, without gradient.

        PPO has them, of the next step, where the representation is the intrinsic reward too; otherwise None.
        """

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def requires_grad_(self, requires_grad: bool = True) -> Self: ...


class Bonus(Protocol):
    """What exploring is paid: how rare a state is among others."""

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Any:
        """The features whose novelty is paid."""

    def compute_reward(
        self,
        features: Any,
        *,
        indices: Tensor | None = None,
        window: int | None = None,
        num_rollouts: int = 1,
        num_batches: int = 1,
    ) -> Tensor:
        """r̂ [B], without gradient; `indices` are the transitions' indices in the replay buffer.

        For rollouts: with a `window` each row is searched among so many near ones only; `num_rollouts`, rows of so many
        environments in turn, each of them among its own. Running scales move as by so many `num_batches`.
        """


@runtime_checkable
class EpisodicBonus(Protocol):
    """What exploring is paid along an episode: what a step changed, and whether that is new there. For rollouts."""

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Any: ...

    def compute_episodic_reward(self, features: Any, done: Tensor) -> Tensor:
        """r̂ [T, E] of features [T + 1, E, ...], the last of which nobody has acted on; `done` [T, E]."""

    def update(self, batch: Any) -> dict[str, Tensor]:
        """One step of its own networks on a minibatch of a rollout; its metrics."""


@runtime_checkable
class HasDiscriminator(Protocol):
    """A representation with a discriminator of its own, which takes its step after the encoder's."""

    def update_discriminator(self, features: Any) -> dict[str, Tensor]: ...


@runtime_checkable
class HasDiagnostics(Protocol):
    """A representation that can say how its features and its bonus are doing, as `mem.Diagnostics` does."""

    def diagnose(self, features: Any, *, beta: float, indices: Tensor | None = None) -> Any: ...
