"""MEM's bonus: the k-NN entropy of shared and specific features (Eq. 9).

With `representation=mem` it is computed on the policy's features. With any other representation it has a separate
encoder, trained by L_total and the regularizers alone.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from manyview.data.batch import Batch, Minibatch, get_next, get_rewarded_vectors, get_rewarded_views
from manyview.data.neighbors import NeighborSearch
from manyview.data.rollout_buffer import RolloutBuffer, map_features
from manyview.mem import (
    Diagnostics,
    EntropyBonus,
    EntropyBonusConfig,
    Features,
    MEMRepresentation,
    MEMRepresentationConfig,
)
from manyview.methods.bonuses.stored_search import (
    SearchSet,
    StoredNeighborSearch,
    check_search,
    get_neighbor_distances,
)
from manyview.methods.bonuses.update_proportion import BonusUpdateConfig, take_proportion
from manyview.methods.interfaces import (
    Bonus,
    BonusConfig,
    BuildContext,
    FeatureSource,
    RunSettings,
)
from manyview.methods.registry import register_bonus
from manyview.nn.normalization import VectorNormalizer
from manyview.nn.optim import make_adam, optimizer_step
from manyview.utils.validation import SettingError, check_positive

RewardFrames = Literal["augmented", "clean"]


@dataclass(frozen=True, kw_only=True)
class OwnEncoderConfig(MEMRepresentationConfig, BonusUpdateConfig):
    """Settings of the bonus's own encoder."""

    lr: float = 1e-4
    """Learning rate of the encoder."""

    def __post_init__(self) -> None:
        MEMRepresentationConfig.__post_init__(self)
        BonusUpdateConfig.__post_init__(self)
        check_positive(self, "lr")


@dataclass(frozen=True, kw_only=True)
class MEMBonusConfig(BonusConfig, EntropyBonusConfig):
    """Settings of MEM's bonus."""

    reward_frames: RewardFrames | None = None
    """Frames of r̂ with a shared encoder. `augmented`: those of the critic, with one shift per view and batch so that
    equal states stay equal. `clean`: without augmentation, which encodes the state a second time. None is `augmented`
    with a shared encoder; the bonus's own encoder and stored features always see clean frames."""
    search: SearchSet = "batch"
    """Search set of the neighbors with a replay buffer: the `batch` and the feature bank, or the whole `buffer`, with
    the features of the moment when each step was stored. Use `buffer` with an encoder that changes slowly."""
    target_encoder: bool = False
    """Compute r̂ on the target network of the shared encoder (`agent.encoder_tau` < 1), which changes slowly."""
    include_state: bool = False
    """Add the state vectors, normalized, as one more term of Eq. 9: r̂ then also pays for novel joints or goals."""
    encoder: OwnEncoderConfig | None = None
    """Encoder of the bonus; None shares the encoder of `representation=mem`."""

    def __post_init__(self) -> None:
        BonusConfig.__post_init__(self)
        EntropyBonusConfig.__post_init__(self)
        if self.search == "buffer" and self.bank:
            raise SettingError("bank", f"expected 0 with search=buffer, got {self.bank}")
        if self.include_state and (self.search, self.entropy, self.bank) != ("batch", "marginal", 0):
            raise SettingError(
                "include_state",
                "expected search=batch, entropy=marginal and bank=0, since stored features would keep outdated "
                f"statistics of the vectors, got {self.search}, {self.entropy} and {self.bank}",
            )

    def fit_representation(self, representation: Any) -> Self:
        """Return the config with a separate encoder unless `representation` is MEM's."""
        if self.encoder is not None or isinstance(representation, MEMRepresentationConfig):
            return self
        return replace(self, encoder=OwnEncoderConfig())

    def check(self, run: RunSettings) -> None:
        """Check that search set, encoder, bank and frames exist, and that no setting lacks an effect."""
        super().check(run)
        check_search(self, run)
        if run.is_on_policy and self.bank:
            raise ValueError(
                f"bonus.bank needs an off-policy agent, got {run.agent_name} with bonus.bank={self.bank}. Set "
                "bonus.bank=0; agent.neighbors=pooled searches the whole rollout"
            )
        is_shared = isinstance(run.representation, MEMRepresentationConfig)
        if is_shared and self.encoder is not None:
            raise ValueError(
                "bonus.encoder has no effect: the bonus shares the encoder of representation=mem. Remove it"
            )
        if self.target_encoder and not (is_shared and getattr(run.agent, "encoder_tau", 1.0) < 1):
            raise ValueError(
                "bonus.target_encoder needs representation=mem and an agent with agent.encoder_tau < 1, got "
                f"{run.representation_name} and {run.agent_name}"
            )
        self._check_reward_frames(run, is_shared=is_shared)

    def _check_reward_frames(self, run: RunSettings, *, is_shared: bool) -> None:
        """Check that r̂ is computed on the frames that `reward_frames` names."""
        name, frames = "reward_frames", self.reward_frames
        if frames is not None and run.is_on_policy:
            raise SettingError(name, f"expected None for {run.agent_name}, which augments no frames, got {frames}")
        if frames == "augmented" and not (is_shared and self.search == "batch"):
            reason = "stored features are" if is_shared else "r̂ of bonus.encoder is"
            raise SettingError(name, f"expected None or clean, since {reason} of clean frames, got augmented")
        if frames == "clean" and self.target_encoder:
            raise SettingError(name, "expected None or augmented with bonus.target_encoder=true, got clean")
        if frames == "clean" and is_shared and run.replay.augmentation == "crop":
            raise SettingError(
                name,
                "expected None or augmented with replay.augmentation=crop, whose images have another size, got clean",
            )
        if self.bank and is_shared and frames != "clean" and run.replay.augmentation != "none":
            # Each batch has a shift of its own, which changes features more than another state does.
            raise SettingError(
                "bank",
                f"expected 0 with frames that replay.augmentation={run.replay.augmentation} changes, got {self.bank}. "
                "Set bonus.reward_frames=clean or replay.augmentation=none",
            )


class MEMBonus(Bonus):
    """r̂ of Eq. 9 on the features of `encoder`, which is the policy's or the bonus's own."""

    config: MEMBonusConfig

    def __init__(self, encoder: MEMRepresentation, config: MEMBonusConfig, *, vector_size: int = 0) -> None:
        super().__init__()
        self.encoder, self.config = encoder, config
        self.uses_state_vectors = include = config.include_state
        if include and not vector_size:
            raise ValueError("bonus.include_state: expected state vectors, got none. Set env.state")
        self.vector_normalizer = VectorNormalizer(vector_size) if include else None
        self.entropy = EntropyBonus(len(encoder.view_names), encoder.config.latent_dim, config, include_vectors=include)
        self.optimizer, self.shares_encoder = None, config.encoder is None
        source: FeatureSource = "target" if config.target_encoder else "online"
        if config.encoder is not None:
            self.optimizer = make_adam(encoder.encoder.parameters(), lr=config.encoder.lr)
            self.uses_next_views = encoder.uses_next_features
        elif config.search == "buffer":
            self.stored_feature_source = source
        elif config.reward_frames != "clean":
            self.feature_source, self.compares_rows = source, True

    @property
    def bank_size(self) -> int:
        return self.config.bank

    def compute_drift(self, features: Features, past_features: Features, *, indices: Tensor | None = None) -> Tensor:
        return self.entropy.compute_drift(features, past_features, indices=indices)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Features:
        return self.encoder.encode(views, mask)

    @property
    def feature_shape(self) -> tuple[int, int] | None:
        is_stored = self.config.search == "buffer"
        return (len(self.encoder.view_names) + 1, self.encoder.config.latent_dim) if is_stored else None

    @property
    def neighbor_search(self) -> NeighborSearch | None:
        config = self.config
        if config.search == "batch":
            return None
        return StoredNeighborSearch(
            groups=len(self.encoder.view_names) + 1,
            k=config.k,
            combine=config.entropy,
            rewarded_state=config.rewarded_state,
        )

    @torch.no_grad()
    def features_to_store(self, views: Tensor, mask: Tensor, features: Any) -> Tensor:
        terms: Tensor = (self.encode(views, mask) if features is None else features).terms
        return terms

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        views, mask, indices = get_rewarded_views(batch, self.config.rewarded_state)
        if self.config.search == "buffer":
            return self.reward_distances(get_neighbor_distances(batch), mask)
        # PAPER: D13. Clean frames, unless the critic's augmented ones are shared.
        if features is None:
            features = self.encode(views, mask)
        vectors = self._normalize(get_rewarded_vectors(batch, self.config.rewarded_state), update=self.training)
        return self.entropy.compute_reward(features, indices=indices, vectors=vectors)

    def _normalize(self, vectors: Tensor | None, *, update: bool = False) -> Tensor | None:
        """Return normalized state vectors, whose statistics `update` first advances; None if r̂ has no such term."""
        if self.vector_normalizer is None:
            return None
        if vectors is None:
            raise ValueError("missing state vectors: expected those of the rewarded states, got None")
        if update:
            self.vector_normalizer.update(vectors)
        normalized: Tensor = self.vector_normalizer(vectors)
        return normalized

    def reward_distances(self, distances: Tensor, mask: Tensor) -> Tensor:
        return self.entropy.reward_distances(distances[..., -1], mask)

    @torch.no_grad()
    def reward_states(
        self, views: Tensor, mask: Tensor, features: Features | None = None, *, vectors: Tensor | None = None
    ) -> Tensor:
        features = self.encode(views, mask) if features is None else features
        return self.entropy.evaluate_reward(features, vectors=self._normalize(vectors))[1]

    @torch.no_grad()
    def compute_rollout(self, rollout: RolloutBuffer, features: Any | None, *, window: int | None) -> Tensor:
        steps, envs = rollout.reward_ext.shape
        if features is None:
            features = rollout.encode_all(self.encode)
        rows = map_features(features, lambda part: part[:steps].flatten(0, 1))
        vectors = None if rollout.vectors is None else rollout.vectors[:steps].flatten(0, 1)
        reward = self.entropy.compute_reward(
            rows,
            window=window,
            num_rollouts=1 if window else envs,
            num_batches=envs,
            vectors=self._normalize(vectors, update=self.training),
        )
        return reward.view(steps, envs)

    def update(self, batch: Batch | Minibatch) -> dict[str, Tensor]:
        """Take one step of the bonus's own encoder by L_total; nothing with a shared one."""
        if self.optimizer is None or self.config.encoder is None:
            return {}
        batch = take_proportion(batch, self.config.encoder.update_proportion)
        features = self.encode(batch.views, batch.mask)
        next_features = None
        if self.encoder.uses_next_features:
            next_views, next_mask, has_next = get_next(batch)
            with torch.no_grad():
                next_features = self.encode(next_views, next_mask)
            # No next step, so no temporal loss.
            next_features = next_features._replace(mask=next_features.mask & has_next.unsqueeze(1))
        loss, metrics = self.encoder.compute_loss(features, next_features)
        grad_norm = optimizer_step(loss, self.optimizer)
        metrics |= self.encoder.update(batch, features)
        return {f"bonus_{name}": value for name, value in metrics.items()} | {"bonus_grad_norm": grad_norm}

    def diagnose(
        self,
        features: Features,
        *,
        beta: float,
        indices: Tensor | None = None,
        neighbor_distances: Tensor | None = None,
        vectors: Tensor | None = None,
    ) -> Diagnostics:
        """Compute health meters of `features` and of r̂, searched as it is paid."""
        distances = None if neighbor_distances is None else neighbor_distances[..., -1]
        return self.encoder.diagnose(
            features,
            bonus=self.entropy,
            beta=beta,
            indices=indices,
            distances=distances,
            vectors=self._normalize(vectors),
        )


@register_bonus("mem", MEMBonusConfig)
def build_mem_bonus(config: MEMBonusConfig, context: BuildContext) -> MEMBonus:
    """Build MEM's bonus on the policy's encoder, or on its own if `config.encoder` is given."""
    if config.encoder is not None:
        encoder = MEMRepresentation(context.view_names, context.image_shape, config.encoder)
        return MEMBonus(encoder, config, vector_size=context.vector_size)
    if not isinstance(context.representation, MEMRepresentation):
        raise ValueError("bonus.encoder: expected settings, got None, which needs representation=mem to share")
    return MEMBonus(context.representation, config, vector_size=context.vector_size)
