"""Controls of the studies of the bonus: MEM's shuffled, untrained, frozen or random, that of the true state, no reward.

`register_controls` registers the bonuses `shuffled_mem`, `untrained_mem`, `frozen_mem`, `random_mem` and `true_state`,
the agents `blind_sac` and `unrewarded_sac`, and the representation `no_images`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from manyview.agents.sac import SAC, SACConfig
from manyview.data.batch import Batch, Minibatch, get_rewarded_vectors, get_rewarded_views
from manyview.mem import EntropyBonus, EntropyBonusConfig, Features, MEMRepresentation
from manyview.mem.knn import ReferenceSet
from manyview.mem.reward import compute_distances
from manyview.methods import AGENTS
from manyview.methods.bonuses.mem import MEMBonus, MEMBonusConfig, build_mem_bonus
from manyview.methods.interfaces import Bonus, BonusConfig, BuildContext
from manyview.methods.registry import register_agent, register_bonus, register_representation
from manyview.nn.normalization import VectorNormalizer

_Control = TypeVar("_Control", bound=MEMBonus)
MIN_STD = 1e-6


@dataclass(frozen=True, kw_only=True)
class ShuffledMEMConfig(MEMBonusConfig):
    """Settings of MEM's bonus."""


class ShuffledMEMBonus(MEMBonus):
    """MEM's r̂, each given to another state of the batch: equal in distribution, without knowledge of novelty."""

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:
        # Rows of a batch are independent draws, so half a turn is a shuffle.
        return super().compute(batch, features, values).roll(len(values) // 2)


def build_shuffled_mem(config: ShuffledMEMConfig, context: BuildContext) -> ShuffledMEMBonus:
    """Build the bonus on the encoder that MEM's would have."""
    return _build_mem_control(ShuffledMEMBonus, config, context)


@dataclass(frozen=True, kw_only=True)
class UntrainedMEMConfig(MEMBonusConfig):
    """Settings of MEM's bonus."""


class UntrainedMEMBonus(MEMBonus):
    """MEM's r̂ of an encoder that stays as it was initialized."""

    def update(self, batch: Batch | Minibatch) -> dict[str, Tensor]:  # noqa: ARG002
        return {}


def build_untrained_mem(config: UntrainedMEMConfig, context: BuildContext) -> UntrainedMEMBonus:
    """Build the bonus on the encoder that MEM's would have."""
    return _build_mem_control(UntrainedMEMBonus, config, context)


@dataclass(frozen=True, kw_only=True)
class FrozenMEMConfig(MEMBonusConfig):
    """Settings of MEM's bonus."""


class FrozenMEMBonus(UntrainedMEMBonus):
    """r̂ of an untrained encoder, searched in the first rows that fill the bank.

    The order of states by r̂ never adapts to what is visited; `reward_scale` still scales r̂ in each batch.
    """

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        views, mask, indices = get_rewarded_views(batch, self.config.rewarded_state)
        bank, states = self.entropy.bank, self.encode(views, mask)
        if bank is None:
            raise ValueError("frozen_mem keeps its first rows in the bank: expected bonus.bank > 0, got 0")
        if self.training and not bank.mask.any(0).all():  # not full yet
            bank.push(states, indices)
        reference = ReferenceSet(bank.points, bank.mask, bank.indices)
        distances, _ = compute_distances(
            states, k=self.config.k, entropy=self.config.entropy, indices=indices, reference=reference
        )
        return self.entropy.reward_distances(distances, states.mask)


def build_frozen_mem(config: FrozenMEMConfig, context: BuildContext) -> FrozenMEMBonus:
    """Build the bonus on the encoder that MEM's would have."""
    return _build_mem_control(FrozenMEMBonus, config, context)


@dataclass(frozen=True, kw_only=True)
class RandomMEMConfig(MEMBonusConfig):
    """Settings of MEM's bonus, of which only those of the encoder have an effect."""


class RandomMEMBonus(UntrainedMEMBonus):
    """A random linear function of an untrained encoder's features: a fixed preference that knows nothing of rarity."""

    direction: Tensor

    def __init__(self, encoder: MEMRepresentation, config: MEMBonusConfig, *, vector_size: int = 0) -> None:
        super().__init__(encoder, config, vector_size=vector_size)
        self.register_buffer("direction", torch.randn(encoder.state_dim))

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        views, mask, _ = get_rewarded_views(batch, self.config.rewarded_state)
        reward = self.encode(views, mask).state @ self.direction
        return (reward - reward.mean()) / reward.std(correction=0).clamp(min=MIN_STD)


def build_random_mem(config: RandomMEMConfig, context: BuildContext) -> RandomMEMBonus:
    """Build the bonus on the encoder that MEM's would have."""
    return _build_mem_control(RandomMEMBonus, config, context)


def _build_mem_control(bonus_class: type[_Control], config: MEMBonusConfig, context: BuildContext) -> _Control:
    encoder: MEMRepresentation = build_mem_bonus(config, context).encoder
    return bonus_class(encoder, config, vector_size=context.vector_size)


@dataclass(frozen=True, kw_only=True)
class TrueStateConfig(BonusConfig, EntropyBonusConfig):
    """Settings of the bonus of the true state."""

    def __post_init__(self) -> None:
        BonusConfig.__post_init__(self)
        EntropyBonusConfig.__post_init__(self)


class TrueStateBonus(Bonus):
    """r̂ of Eq. 9 with the simulator's normalized state in place of features: a reference without an encoder."""

    config: TrueStateConfig
    uses_state_vectors = True

    def __init__(self, vector_size: int, config: TrueStateConfig) -> None:
        super().__init__()
        self.config, self.normalizer = config, VectorNormalizer(vector_size)
        self.entropy = EntropyBonus(1, vector_size, config)

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        vectors = get_rewarded_vectors(batch, self.config.rewarded_state)
        if vectors is None:
            raise ValueError("true_state needs the simulator's state: expected state vectors, got none. Set env.state")
        _, _, indices = get_rewarded_views(batch, self.config.rewarded_state)
        if self.training:
            self.normalizer.update(vectors)
        return self.entropy.compute_reward(self._make_features(vectors), indices=indices)

    def _make_features(self, vectors: Tensor) -> Features:
        state = self.normalizer(vectors)  # [B, D]
        nothing = torch.zeros_like(state)  # a shared mean that adds nothing to the joint distance
        mask = torch.ones(len(state), 1, dtype=torch.bool, device=state.device)
        return Features(nothing.unsqueeze(1), state.unsqueeze(1), nothing, state, mask)


def build_true_state(config: TrueStateConfig, context: BuildContext) -> TrueStateBonus:
    """Build the bonus of the true state."""
    if config.entropy != "joint":
        raise ValueError(f"true_state has one term: expected bonus.entropy=joint, got {config.entropy}")
    return TrueStateBonus(context.vector_size, config)


@dataclass(frozen=True, kw_only=True)
class BlindSACConfig(SACConfig):
    """Settings of SAC."""


class BlindSAC(SAC):
    """SAC on images alone, although there are state vectors: only the bonus sees those."""

    supports_state_vectors = True

    def __init__(self, *args: Any, vector_size: int = 0, **options: Any) -> None:  # noqa: ARG002
        super().__init__(*args, **options)

    def join_vectors(self, state: Tensor, vectors: Tensor | None) -> Tensor:  # noqa: ARG002
        return state


def build_blind_sac(config: BlindSACConfig, context: BuildContext) -> BlindSAC:
    """Build SAC without the state vectors."""
    return BlindSAC.build(config, context)


@dataclass(frozen=True, kw_only=True)
class UnrewardedSACConfig(SACConfig):
    """Settings of SAC."""


class UnrewardedSAC(SAC):
    """SAC that learns as if the task had no reward."""

    supports_state_vectors = True

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        return super().update(batch._replace(reward_ext=torch.zeros_like(batch.reward_ext)), step)


def build_unrewarded_sac(config: UnrewardedSACConfig, context: BuildContext) -> UnrewardedSAC:
    """Build SAC without the task's reward."""
    return UnrewardedSAC.build(config, context)


@dataclass(frozen=True, kw_only=True)
class NoImagesConfig:
    """No settings."""


class NoFeatures(NamedTuple):
    state: Tensor  # [B, 1], zeros
    mask: Tensor  # [B, V]


class NoImages(nn.Module):
    """No encoder: the policy has the state vectors alone, and only the bonus sees the images."""

    state_dim = 1
    uses_next_features = False

    def encode(self, views: Tensor, mask: Tensor | None = None) -> NoFeatures:
        present = torch.ones(views.shape[:2], dtype=torch.bool, device=views.device) if mask is None else mask
        return NoFeatures(torch.zeros(len(views), 1, device=views.device), present)

    def compute_loss(self, features: NoFeatures, next_features: Any) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        return features.state.new_zeros(()), {}


def build_no_images(config: NoImagesConfig, context: BuildContext) -> NoImages:  # noqa: ARG001
    """Build the representation; the run needs `env.state`."""
    if not context.vector_size:
        raise ValueError("no_images leaves nothing to act on: expected state vectors, got none. Set env.state")
    return NoImages()


def register_controls() -> None:
    """Register the controls in this process, once."""
    if "blind_sac" not in AGENTS.list_names():
        register_agent("blind_sac", BlindSACConfig, data=("replay",))(build_blind_sac)
        register_agent("unrewarded_sac", UnrewardedSACConfig, data=("replay",))(build_unrewarded_sac)
        register_representation("no_images", NoImagesConfig)(build_no_images)
        register_bonus("shuffled_mem", ShuffledMEMConfig)(build_shuffled_mem)
        register_bonus("untrained_mem", UntrainedMEMConfig)(build_untrained_mem)
        register_bonus("frozen_mem", FrozenMEMConfig)(build_frozen_mem)
        register_bonus("random_mem", RandomMEMConfig)(build_random_mem)
        register_bonus("true_state", TrueStateConfig)(build_true_state)
