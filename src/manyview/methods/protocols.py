"""The seam: what an agent expects of a representation and of an intrinsic reward.

An agent's update is `features = representation.encode(views, mask)`, act on `features.state`, add
`representation.loss(features, later)` to the critic's loss in the same backward pass, and train on
`reward_ext + beta(t) * intrinsic.reward(...)`. The protocols are structural: MEM fits both without importing them.
"""

from collections.abc import Iterator
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor, nn


class Encoded(Protocol):
    """What any encoder makes of views. Methods know more about their own."""

    @property
    def state(self) -> Tensor: ...  # [B, S], what the policy acts on


class Representation(Protocol):
    """What the policy sees, and how it is learned."""

    @property
    def state_dim(self) -> int: ...

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Encoded:
        """`views` [B, V, C, H, W] uint8 and `mask` [B, V], to what `loss` takes."""

    def loss(self, features: Any, later: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """To be added to the critic's loss; `later` are the features n steps on, without gradient.

        PPO has them, of the next step, where the representation is the intrinsic reward too; otherwise None.
        """

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def requires_grad_(self, requires_grad: bool = True) -> Self: ...


class Intrinsic(Protocol):
    """What exploring is paid: how rare a state is among others."""

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Any:
        """The features whose novelty is paid."""

    def reward(
        self, features: Any, *, rows: Tensor | None = None, window: int | None = None, apart: int = 1, batches: int = 1
    ) -> Tensor:
        """r̂ [B], without gradient; `rows` are the transitions' places in the replay.

        For rollouts: with a `window` each row is searched among so many near ones only; `apart`, rows of so many
        environments in turn, each of them among its own. Running scales move as by so many `batches`.
        """


@runtime_checkable
class Episodic(Protocol):
    """What exploring is paid along an episode: what a step changed, and whether that is new there. For rollouts."""

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Any: ...

    def reward_along(self, features: Any, ended: Tensor) -> Tensor:
        """r̂ [T, E] of features [T + 1, E, ...], the last of which nobody has acted on; `ended` [T, E]."""

    def learn(self, batch: Any) -> dict[str, Tensor]:
        """One step of its own networks on a minibatch of a rollout; its metrics."""


@runtime_checkable
class Adversarial(Protocol):
    """A representation with a discriminator of its own, which takes its step after the encoder's."""

    def update_discriminator(self, features: Any) -> dict[str, Tensor]: ...


@runtime_checkable
class Healthy(Protocol):
    """A representation that can say how its features and its bonus are doing, as `mem.Health` does."""

    def health(self, features: Any, *, beta: float, rows: Tensor | None = None) -> Any: ...
