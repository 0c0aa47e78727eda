"""Base class of agents that learn from a replay buffer: what DrQ-v2 and SAC share.

Image augmentation, target networks, the bonus of a replay batch and statistics of the critic's targets.
"""

from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from manyview.agents.base import Agent, check_state_vectors, compute_in_float32
from manyview.agents.drift import DriftMeter, compute_stored_drift, has_trained_parameters
from manyview.agents.encoded_batch import EncodedBatch, TrainingInputs, VectorFeatures, select_rows
from manyview.agents.off_policy_config import OffPolicyConfig
from manyview.data.batch import Batch, get_rewarded_vectors
from manyview.data.batch_augmentation import RANDOM_SHIFT, ImageAugmentation, ShiftMode, drop_views
from manyview.data.neighbors import NeighborFn, NeighborSearch
from manyview.data.sequences import pack_sequences
from manyview.methods.interfaces import (
    Bonus,
    BuildContext,
    FeatureSource,
    HasCritic,
    HasFeatureBank,
    HasSingleViews,
    Representation,
    find_stored_features,
)
from manyview.methods.recurrent import Recurrent
from manyview.nn.heads import Head, TwinCritic, compute_dormant_fraction
from manyview.nn.normalization import RunningMoments
from manyview.nn.optim import make_adam
from manyview.nn.soft_update import make_target, soft_update
from manyview.nn.vector_encoder import join_features


class OffPolicyAgent(Agent):
    """Agent that learns from batches of a replay buffer."""

    actor: Head
    critic: TwinCritic

    def __init__(
        self,
        representation: Representation,
        action_dim: int,
        config: OffPolicyConfig,
        *,
        bonus: Bonus | None = None,
        beta: Callable[[int], float] | None = None,
        augmentation: ImageAugmentation = RANDOM_SHIFT,
        seed: int = 0,
        vector_size: int = 0,
    ) -> None:
        super().__init__(representation, bonus=bonus, beta=beta, vector_size=vector_size, vector_dim=config.vector_dim)
        self.action_dim, self.config, self.augmentation = action_dim, config, augmentation
        self.target_representation = make_target(representation) if config.encoder_tau < 1 else representation
        self.target_vector_encoder = self.vector_encoder
        if self.vector_encoder is not None and config.encoder_tau < 1:
            self.target_vector_encoder = self.vector_encoder.make_target()
        self.drift_meter = self._make_drift_meter()
        self.generator = torch.Generator().manual_seed(seed)
        self.target_moments = RunningMoments(1)

    @classmethod
    def build(cls, config: Any, context: BuildContext) -> Self:
        """Build the agent of a run, as a function of `register_agent` must."""
        check_state_vectors(cls, context.vector_size)
        # Only where there are any: an agent without them need not know the argument.
        vectors = {"vector_size": context.vector_size} if context.vector_size else {}
        return cls(
            context.representation,
            context.actions.size,
            config,
            bonus=context.bonus,
            beta=context.beta,
            augmentation=context.augmentation,
            seed=context.seed,
            **vectors,
        )

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Take one gradient update at agent step `step` and return its metrics.

        Raises `NonFiniteError` instead of taking a step along a gradient that is not finite.
        """
        raise NotImplementedError

    def prepare_views(self, views: Tensor) -> Tensor:
        return self.augmentation.crop_center(views)

    @torch.no_grad()
    def compute_meters(self, batch: Batch) -> dict[str, Tensor]:
        """Return the shares of dormant units and the drift, where r̂ compares features of different ages."""
        cropped = self.prepare_views(batch.views)
        state = self.join_vectors(self._encode_rows(batch, cropped).state, batch.vectors)
        inputs, critic_heads = self.critic.join(state, batch.action), cast("list[Head]", self.critic.heads)
        critic_shares = [compute_dormant_fraction(head, inputs) for head in critic_heads]
        meters = {
            "dormant_actor": compute_dormant_fraction(self.actor, state),
            "dormant_critic": torch.stack(critic_shares).mean(),
        }
        bonus: Any = self.bonus
        if self.drift_meter is not None:
            drift_views = cropped if bonus.shares_encoder else batch.views
            meters["drift"] = self.drift_meter.measure(drift_views, batch.mask, batch.indices)
        elif batch.stored_features is not None and has_trained_parameters(bonus):
            features = self.compute_stored_features(batch.views, batch.mask)
            meters["drift"] = compute_stored_drift(features, batch, bonus.config.rewarded_state)
        return meters

    def _make_drift_meter(self) -> DriftMeter | None:
        bonus: Any = self.bonus
        if not isinstance(bonus, HasFeatureBank) or not bonus.bank_size:
            return None
        is_target = self.bonus is not None and self.bonus.feature_source == "target"
        return DriftMeter(self.target_representation if is_target else bonus.encoder, bonus)

    def _encode_rows(self, batch: Batch, views: Tensor) -> Any:
        """Encode the cropped `views` of s_t, without randomness; a recurrent representation encodes sequences."""
        if not isinstance(self.representation, Recurrent):
            return self.representation.encode(views, batch.mask)
        sequences = pack_sequences(batch)
        features = self.representation.encode_sequences(sequences._replace(views=self.prepare_views(sequences.views)))
        return select_rows(features, sequences.rows)

    def encode_batch(self, batch: Batch) -> EncodedBatch:
        """Augment a batch and encode s_t, with gradient, and s_{t+n}, without.

        The statistics of state vectors first advance by the batch: all its states are normalized alike.
        """
        self.update_vector_stats(batch.vectors)
        is_recurrent = isinstance(self.representation, Recurrent)
        encoded = self._encode_sequences(batch) if is_recurrent else self._encode_transitions(batch)
        return encoded._replace(vectors=self._encode_vectors(batch))

    def _encode_vectors(self, batch: Batch) -> VectorFeatures | None:
        encoder, target_encoder = self.vector_encoder, self.target_vector_encoder
        if encoder is None or target_encoder is None:
            return None
        with torch.no_grad():
            next_features = target_next_features = encoder(batch.next_vectors)
            if target_encoder is not encoder:
                target_next_features = target_encoder(batch.next_vectors)
        return VectorFeatures(encoder(batch.vectors), next_features, target_next_features)

    def _encode_transitions(self, batch: Batch) -> EncodedBatch:
        views, next_views = (
            self.augmentation.apply(images, self.generator, self.shift_mode)
            for images in (batch.views, batch.next_views)
        )
        mask = batch.mask
        if self.config.view_dropout:
            mask = drop_views(mask, self.config.view_dropout, self.generator)
        features = self.representation.encode(views, mask)
        with torch.no_grad():
            next_features = target_next_features = self.representation.encode(next_views, batch.next_mask)
            if self.target_representation is not self.representation:
                target_next_features = self.target_representation.encode(next_views, batch.next_mask)
        return EncodedBatch(views, mask, features, next_features, target_next_features)

    def _encode_sequences(self, batch: Batch) -> EncodedBatch:
        """Encode one of two augmentations of the batch's sequences; s_t and s_{t+n} are parts of the same sequence."""
        representation, target_representation = cast(
            "tuple[Recurrent, Recurrent]", (self.representation, self.target_representation)
        )
        packed = pack_sequences(batch)
        first, second = (
            packed._replace(views=self.augmentation.apply(packed.views, self.generator, self.shift_mode))
            for _ in range(2)
        )
        features = representation.encode_sequences(first, self.generator)
        with torch.no_grad():
            next_features = target_next_features = select_rows(features, packed.next_rows, detach=True)
            if target_representation is not representation:
                target_features = target_representation.encode_sequences(first, self.generator)
                target_next_features = select_rows(target_features, packed.next_rows)
        views, features = first.views[packed.rows], select_rows(features, packed.rows)
        return EncodedBatch(views, batch.mask, features, next_features, target_next_features, (first, second))

    def update_sequences(self, encoded: EncodedBatch) -> dict[str, Tensor]:
        """Update a recurrent representation by its own loss, after the target networks have moved."""
        if encoded.sequences is None:
            return {}
        representation = cast("Recurrent", self.representation)
        return representation.update_sequences(*encoded.sequences, self.target_representation, self.generator)

    @property
    def shift_mode(self) -> ShiftMode:
        """Mode of the random shift for this agent's batches."""
        # PAPER: D13. One shift per view where r̂ is computed on it: a shift per image makes equal states differ.
        return "common" if self.bonus is not None and self.bonus.compares_rows else "each"

    @torch.no_grad()
    def compute_bonus(self, batch: Batch, encoded: EncodedBatch, values: Tensor) -> Tensor:
        """Return r̂ [B] (MEM: Eq. 9), zeros without a bonus. `values` [2, B] are the critics' of (s_t, a_t)."""
        if self.bonus is None:
            return torch.zeros_like(batch.reward_ext)
        features = self._get_bonus_features(batch, encoded, self.bonus.feature_source)
        with compute_in_float32(values):
            if isinstance(self.bonus, HasCritic):
                state = self.join_vectors(features.state, get_rewarded_vectors(batch, self.bonus.config.rewarded_state))
                values = self.bonus.predict_values(features.state, self.compute_greedy_action(state))
            return self.bonus.compute(batch, features, values.detach().amin(0))

    def update_bonus_critic(self, batch: Batch, encoded: EncodedBatch) -> dict[str, Tensor]:
        """Update the bonus's own critics and return metrics; {} without such critics."""
        bonus: Any = self.bonus
        if not isinstance(bonus, HasCritic):
            return {}
        with torch.no_grad():
            next_action = self.compute_greedy_action(encoded.next_state)
        state, next_state = encoded.features.state.detach(), encoded.next_features.state
        with compute_in_float32(state):
            return bonus.update_critic(batch, state, next_state, next_action)

    def _get_bonus_features(self, batch: Batch, encoded: EncodedBatch, source: FeatureSource | None) -> Any:
        """Return the features of the rewarded state by `source`, of all views; encode only what is not encoded yet."""
        bonus: Any = self.bonus
        if source is None:
            return None
        if bonus.config.rewarded_state == "next":
            return encoded.next_features if source == "online" else encoded.target_next_features
        if source == "online" and not self.config.view_dropout:
            return encoded.features
        encoder = self.representation if source == "online" else self.target_representation
        return encoder.encode(encoded.views, batch.mask)

    @torch.no_grad()
    def compute_stored_features(self, views: Tensor, mask: Tensor) -> Tensor:
        """Return the features [B, groups, dimension] that the bonus keeps beside a step."""
        bonus: Any = self.bonus
        features = self.encode_for_bonus(views, mask, bonus.stored_feature_source)
        with compute_in_float32(mask):
            stored: Tensor = bonus.features_to_store(views, mask, features)
        return stored

    @property
    def neighbor_search(self) -> NeighborSearch | None:
        """Search in the replay buffer that r̂ is paid by; None if the bonus stores no features."""
        bonus = find_stored_features(self.bonus)
        return None if bonus is None else bonus.neighbor_search

    def encode_for_bonus(self, views: Tensor, mask: Tensor, source: FeatureSource | None) -> Any | None:
        if source == "target":
            return self.target_representation.encode(self.prepare_views(views), mask)
        return super().encode_for_bonus(views, mask, source)

    @torch.no_grad()
    def reward_states(
        self, views: Tensor, mask: Tensor, search: NeighborFn | None = None, *, vectors: Tensor | None = None
    ) -> Tensor | None:
        bonus: Any = self.bonus
        if self.neighbor_search is None:
            return super().reward_states(views, mask, vectors=vectors)
        distances = None if search is None else search(self.compute_stored_features(views, mask), mask)
        return None if distances is None else bonus.reward_distances(distances, mask)

    def get_training_inputs(self, encoded: EncodedBatch) -> TrainingInputs:
        """Return the states that critics and actor learn on, with gradient."""
        if not isinstance(self.representation, HasSingleViews):
            return TrainingInputs(encoded.state)
        states, weights = self.representation.encode_single_views(encoded.features)  # [V, B, S], [V, B]
        weights = torch.cat([1 - weights.sum(0, keepdim=True), weights]).flatten()
        vectors = encoded.vectors and encoded.vectors.current
        inputs = [encoded.state, *(join_features(state, vectors) for state in states)]
        return TrainingInputs(torch.cat(inputs), weights / len(encoded.state))

    def critic_input(self, state: Tensor) -> Tensor:
        """Return `state` for the critic's loss, detached unless the critic trains the encoder."""
        # PAPER: D18. Algorithm 1, read literally, trains the encoder by L_total alone. State vectors have no such loss:
        # their encoder always learns from the critics.
        if self.config.critic_trains_encoder:
            return state
        if self.vector_encoder is None:
            return state.detach()
        size = self.representation.state_dim
        return torch.cat([state[:, :size].detach(), state[:, size:]], dim=1)

    @property
    def representation_loss_scale(self) -> Tensor:
        """Weight of the representation's loss: the running variance of the targets, at least 1.

        PAPER: D30. With large rewards the critic's loss would otherwise dominate, and the features could collapse.
        """
        if not self.config.critic_trains_encoder:
            return self.target_moments.std.new_ones(())
        return self.target_moments.std.square().clamp(min=1).squeeze(0)

    def update_target_stats(self, target: Tensor) -> None:
        """Update the running statistics of the critic's targets, which must be finite.

        Call it after the optimizer step, which raises if they are not.
        """
        self.target_moments.update(target.unsqueeze(1))

    def update_targets(self, critic: nn.Module, target_critic: nn.Module, *, critic_tau: float) -> None:
        """Move the target networks of critics and encoder toward the online ones."""
        soft_update(critic, target_critic, critic_tau)
        if self.target_representation is not self.representation:
            soft_update(self.representation, self.target_representation, self.config.encoder_tau)
        encoder, target_encoder = self.vector_encoder, self.target_vector_encoder
        if encoder is not None and target_encoder is not None and target_encoder is not encoder:
            soft_update(encoder, target_encoder, self.config.encoder_tau)

    def make_critic(self, *, projection_dim: int | None = None) -> TwinCritic:
        """Build the twin critics; with `projection_dim` they project the state themselves."""
        sizes = self.state_dim, self.action_dim, self.config.hidden
        return TwinCritic(*sizes, layer_norm=self.config.layer_norm, projection_dim=projection_dim)

    def make_critic_optimizer(self, critic: nn.Module, lr: float) -> torch.optim.Adam:
        """Build the optimizer of the encoders, at `encoder_lr`, and the critics."""
        vectors = [] if self.vector_encoder is None else list(self.vector_encoder.parameters())
        groups: list[dict[str, Any]] = [
            {"params": [*self.representation.parameters(), *vectors], "lr": self.config.encoder_lr or lr},
            {"params": list(critic.parameters())},
        ]
        return make_adam(groups, lr=lr)

    def sample_noise(self, like: Tensor) -> Tensor:
        """Return standard normal noise of the shape of `like`, drawn on the CPU: equal on every device."""
        return torch.randn(like.shape, generator=self.generator, device=self.generator.device).to(like.device)
