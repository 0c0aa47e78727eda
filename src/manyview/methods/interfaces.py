"""Interfaces between agents, representations and bonuses.

An agent's update is one loop::

    features = representation.encode(views, mask)                  # act and learn on features.state
    reward_int = bonus.compute(batch, features, values)            # r̂ of the rewarded state
    reward = reward_ext + beta(t) * reward_int
    loss = critic_loss + representation.compute_loss(features, next_features)  # one backward pass
    loss += representation.compute_policy_loss(...)                # on-policy, if it regularizes the policy
    representation.update(batch, features)                         # if it has further networks
    bonus.update(batch)                                            # the bonus's own networks

A bonus is a subclass of `Bonus`; the protocols are structural: MEM's classes fit without importing them.
`methods/recurrent.py` has the interface of recurrent representations; `docs/explanation/composition.md` explains all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, runtime_checkable

from torch import Tensor, nn

from manyview.data.action_spec import ActionSpec
from manyview.data.batch import Batch, Minibatch, RewardedState
from manyview.data.batch_augmentation import RANDOM_SHIFT, ImageAugmentation
from manyview.data.neighbors import NeighborSearch
from manyview.data.rollout_buffer import RolloutBuffer
from manyview.data.state_vectors import VectorShapes
from manyview.mem.reward import BetaSchedule
from manyview.utils.validation import check_choices

DataSource = Literal["replay", "rollout", "sequences"]
"""Data that an agent learns from: transitions of a replay buffer, rollouts, or sequences of a replay buffer."""
FeatureSource = Literal["online", "target"]


class RunSettings(Protocol):
    """All settings of a run, as `check` of a config gets them.

    The config of a part may have a method `check(run: RunSettings) -> None`. It raises a `SettingError` with the name
    of a setting of the part, or a ValueError, for a run that it does not fit.
    """

    @property
    def agent(self) -> Any: ...
    @property
    def agent_name(self) -> str: ...
    @property
    def is_on_policy(self) -> bool: ...
    @property
    def representation(self) -> Any: ...
    @property
    def representation_name(self) -> str: ...
    @property
    def bonus(self) -> Any: ...
    @property
    def bonus_name(self) -> str: ...
    @property
    def env(self) -> Any: ...
    @property
    def replay(self) -> Any: ...
    @property
    def rollout(self) -> Any: ...
    @property
    def scale(self) -> Any: ...


class EncoderOutput(Protocol):
    """Minimal output of an encoder: a `NamedTuple` of tensors [B, ...]; each representation adds fields.

    Rollout buffers stack and index the fields, and clear `mask` where an episode ended.
    """

    @property
    def state(self) -> Tensor: ...  # [B, S], input of the policy

    @property
    def mask(self) -> Tensor: ...  # [B, V] bool, present views


class Representation(Protocol):
    """Encoder of the policy's observations, with an auxiliary loss."""

    @property
    def state_dim(self) -> int: ...  # S

    @property
    def uses_next_features(self) -> bool:
        """True if `compute_loss` needs `next_features`; PPO then stores the features of every step."""

    def encode(self, views: Tensor, mask: Tensor | None = None) -> EncoderOutput:
        """Encode `views` [B, V, C, H, W] uint8; `mask` [B, V] bool marks present views (default: all)."""

    def compute_loss(self, features: Any, next_features: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the auxiliary loss, added to the agent's, and its metrics.

        `next_features` are those of s_{t+n}, without gradient; None if they are not used.
        """

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def requires_grad_(self, requires_grad: bool = True) -> Self: ...


class Bonus(nn.Module):
    """Base class of the intrinsic rewards r̂.

    Implement `compute` for replay batches, `compute_rollout` for rollouts, or both. Set the attributes whose defaults
    do not fit, on the class or in `__init__`.
    """

    config: "BonusConfig"
    feature_source: FeatureSource | None = None
    """Encoder of the features that `compute` and `compute_rollout` get: the policy's, its target network, or None for
    no features."""
    stored_feature_source: FeatureSource | None = None
    """The same for `StoresFeatures.features_to_store`."""
    compares_rows: bool = False
    """True if `compute` compares the features of different rows: these then share one random shift per view."""
    uses_next_views: bool = False
    """True if `update` calls `get_next`: minibatches of a rollout then hold the views of the next step."""
    shares_encoder: bool = False
    """True if its encoder is the policy's: `encode` and `reward_states` then get images cropped as for acting."""
    uses_state_vectors: bool = False
    """True if `reward_states` and `diagnose` also take `vectors`, the raw state vectors [B, D]."""

    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:
        """Return r̂ [B] of a replay batch, without gradient.

        Args:
            batch: s_t, a_t, s_{t+n} and their places in the replay buffer, without augmentation.
            features: the features of the rewarded state by `feature_source`, augmented as the critic sees it.
            values: [B], the smaller of the two critics' values of (s_t, a_t); see also `HasCritic`.

        """
        raise NotImplementedError(f"{type(self).__name__} has no reward of replay batches: expected an on-policy agent")

    def compute_rollout(self, rollout: RolloutBuffer, features: Any | None, *, window: int | None) -> Tensor:
        """Return r̂ [T, E] of a complete rollout, without gradient.

        Args:
            rollout: T steps of E environments, with the observation after the last step.
            features: the policy's features [T + 1, E, ...]; None without a `feature_source`.
            window: search neighbors among this many rows of all environments; None searches each environment alone.

        """
        raise NotImplementedError(f"{type(self).__name__} has no reward of rollouts: expected an off-policy agent")

    def update(self, batch: Batch | Minibatch) -> dict[str, Tensor]:  # noqa: ARG002
        """Take one optimizer step of the bonus's own networks and return metrics; {} without networks."""
        return {}


@runtime_checkable
class StoresFeatures(Protocol):
    """Bonus with features that are computed once, when a step is stored, and kept beside it.

    `compute` gets the distances to their nearest neighbors in the whole replay buffer as `batch.neighbor_distances`.
    """

    @property
    def feature_shape(self) -> tuple[int, int] | None:
        """Groups and dimension of the stored features; None if this config stores none."""

    @property
    def neighbor_search(self) -> NeighborSearch | None:
        """Search that samplers run; None if this config stores no features."""

    def features_to_store(self, views: Tensor, mask: Tensor, features: Any) -> Tensor:
        """Return the features [B, groups, dimension] of `views` [B, V, C, H, W], to keep beside the step.

        `features` are those by `Bonus.stored_feature_source`.
        """

    def reward_distances(self, distances: Tensor, mask: Tensor) -> Tensor:
        """Return r̂ [B] for the distances [B, groups, k] of `neighbor_search` and `mask` [B, V] of the states."""


def find_stored_features(bonus: Any) -> StoresFeatures | None:
    """Return the bonus if it stores features in its config, None otherwise."""
    return bonus if isinstance(bonus, StoresFeatures) and bonus.feature_shape is not None else None


@runtime_checkable
class RewardsStates(Protocol):
    """Bonus that can reward the states of an evaluation, without actions and next states."""

    @property
    def shares_encoder(self) -> bool: ...

    @property
    def feature_source(self) -> FeatureSource | None: ...

    def reward_states(self, views: Tensor, mask: Tensor, features: Any) -> Tensor:
        """Return r̂ [B] of `views` [B, V, C, H, W] among each other, without changing any state.

        `features` are those by `feature_source`; None without one.
        """


@runtime_checkable
class HasCritic(Protocol):
    """Bonus that has critics on the policy's features, such as VCSE.

    Off-policy agents train them. The `values` that `compute` gets are theirs, of the policy's greedy actions in the
    rewarded state. Its `feature_source` must not be None.
    """

    def predict_values(self, state: Tensor, action: Tensor) -> Tensor:
        """Return the values [2, B] of `state` [B, S], the policy's features, and `action` [B, A]."""

    def update_critic(self, batch: Batch, state: Tensor, next_state: Tensor, next_action: Tensor) -> dict[str, Tensor]:
        """Take one optimizer step of the critics and return metrics.

        `state` and `next_state` are the policy's features of s_t and s_{t+n}, without gradient; `next_action` is its
        greedy action in s_{t+n}.
        """


@runtime_checkable
class HasFeatureBank(Protocol):
    """Bonus that compares the features of `encoder` with those of earlier updates, in a feature bank."""

    @property
    def encoder(self) -> Any: ...

    @property
    def bank_size(self) -> int: ...  # rows; 0 without a bank

    def compute_drift(self, features: Any, past_features: Any, *, indices: Tensor | None = None) -> Tensor:
        """Return the motion between features of equal images, in units of the distance to the k-th neighbor."""


@runtime_checkable
class HasUpdate(Protocol):
    """Representation with networks that the agent does not train: a discriminator, a target network."""

    def update(self, batch: Batch | Minibatch, features: Any) -> dict[str, Tensor]:
        """Update these networks after the step of encoder and critic, and return metrics.

        `batch` is without augmentation; `features` are those that `compute_loss` got. Their graph is gone: detach them.
        """


@runtime_checkable
class RegularizesPolicy(Protocol):
    """Representation of on-policy agents with a loss of policy and value function."""

    def start_updates(self, returns: Tensor) -> dict[str, Tensor]:
        """Prepare for the updates on a rollout with the returns [T, E], and return metrics."""

    def compute_policy_loss(
        self, batch: Minibatch, distribution: Any, value: Tensor, evaluate: Callable[[Tensor], tuple[Any, Tensor]]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a loss, added to the agent's, and its metrics.

        `distribution` (an `ActionDistribution`) and `value` [B] are the agent's outputs for `batch`, `evaluate` returns
        those for other states [B, S]; all have gradients.
        """


@runtime_checkable
class HasSingleViews(Protocol):
    """Representation on whose single views actor and critics learn too, as in MAD."""

    def encode_single_views(self, features: Any) -> tuple[Tensor, Tensor]:
        """Return the state of each view alone [V, B, S], with gradient, and its weight in the losses [V, B].

        `features.state` has the rest of a row's weight 1. The critics' targets are those of all views.
        """


@runtime_checkable
class HasDiagnostics(Protocol):
    """Representation or bonus with health meters, as `mem.Diagnostics`."""

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Any: ...

    def diagnose(self, features: Any, *, beta: float, indices: Tensor | None = None) -> Any:
        """Compute the health meters of a batch, without changing any state.

        A bonus that stores features also gets `neighbor_distances` [B, groups, k], as `batch.neighbor_distances`.
        """


@dataclass(frozen=True, kw_only=True)
class BonusConfig(BetaSchedule):
    """Settings that every bonus has: its weight β and the state that it rewards."""

    rewarded_state: RewardedState = "current"
    """State whose r̂ an n-step transition gets: `current`, s_t as in the paper, or `next`, s_{t+n}, which a shared
    encoder has encoded anyway."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)

    def fit_representation(self, representation: Any) -> Self:  # noqa: ARG002
        """Return the config to use with the config `representation`; a bonus may share its encoder."""
        return self

    def check(self, run: RunSettings) -> None:
        """Check that the agent supports the rewarded state and the unit of β."""
        if run.is_on_policy and self.rewarded_state == "next":
            raise ValueError(f"bonus.rewarded_state=next needs an agent with a replay buffer, got {run.agent_name}")
        if not run.is_on_policy and self.unit != "agent_steps":
            raise ValueError(f"bonus.unit must be agent_steps for {run.agent_name}, got {self.unit!r}")


@dataclass(frozen=True, kw_only=True)
class BuildContext(VectorShapes):
    """Context that a part is built from, besides its config."""

    view_names: tuple[str, ...]
    image_shape: tuple[int, int, int]  # C, H, W; stacked frames along C, the newest last
    frame_stack: int
    actions: ActionSpec
    seed: int
    """Seed for generators of the part; weights are initialized from torch's global generator, which is seeded."""
    augmentation: ImageAugmentation = RANDOM_SHIFT
    """Augmentation of replay batches."""
    num_envs: int = 1
    """Environments of an on-policy run."""
    representation: Any = None
    """The built representation; None while the representation itself is built."""
    bonus: Any = None
    """The built bonus, given to agents; None without a bonus."""
    beta: Callable[[int], float] | None = None
    """Weight β of the bonus by elapsed units, given to agents; None without a bonus."""

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """Shape [C, H, W] of a single frame."""
        channels, height, width = self.image_shape
        return channels // self.frame_stack, height, width

    @property
    def num_views(self) -> int:
        return len(self.view_names)

    def find_views(self, names: Sequence[str] | None) -> list[int] | None:
        """Return the indices of the named views; None for all. Raises ValueError for an unknown name."""
        if names is None:
            return None
        unknown = [name for name in names if name not in self.view_names]
        if unknown or not names:
            raise ValueError(
                f"bonus.views: expected some of {', '.join(self.view_names)}, got {', '.join(unknown) or 'none'}"
            )
        return [self.view_names.index(name) for name in names]
