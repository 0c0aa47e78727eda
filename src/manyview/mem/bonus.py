"""MEM's bonus: the intrinsic reward r̂ of Eq. 9 with its feature bank and running scales."""

import torch
from torch import Tensor, nn

from manyview.mem.config import EntropyBonusConfig
from manyview.mem.encoder import Features
from manyview.mem.feature_bank import FeatureBank
from manyview.mem.knn import ReferenceSet
from manyview.mem.reward import (
    check_replay_or_rollouts,
    compute_distances,
    compute_vector_distances,
    intrinsic_reward,
)
from manyview.nn.normalization import RunningMoments, make_reward_moments

FIRST_SUBSTITUTE = -(2**62)
"""Index of the first row without replay indices. Bank rows have -1 without an index, demonstrations -2 and below."""


class EntropyBonus(nn.Module):
    """k-NN entropy of the features of V views, as a reward of each row.

    In training mode `compute_reward` also updates running scales and the feature bank, as batch norm updates its
    statistics.
    """

    def __init__(
        self,
        num_views: int,
        latent_dim: int,
        config: EntropyBonusConfig | None = None,
        *,
        include_vectors: bool = False,
    ) -> None:
        """Make the bonus; with `include_vectors`, normalized state vectors are one more term of Eq. 9."""
        super().__init__()
        self.config = config = config or EntropyBonusConfig()
        if include_vectors and (config.bank or config.entropy == "joint"):
            raise ValueError(
                "state vectors in the bonus need entropy=marginal and bank=0, got "
                f"entropy={config.entropy} and bank={config.bank}"
            )
        num_terms = num_views + 1
        num_columns = (1 if config.entropy == "joint" else num_terms) + include_vectors
        self.distance_moments = RunningMoments(num_columns)
        self.reward_moments = make_reward_moments(config.reward_scale)
        self.bank = FeatureBank(config.bank, num_terms, latent_dim) if config.bank else None

    @torch.no_grad()
    def compute_reward(
        self,
        features: Features,
        *,
        indices: Tensor | None = None,
        window: int | None = None,
        num_rollouts: int = 1,
        num_batches: int = 1,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """Return r̂ [B] of Eq. 9, searched in the batch and the feature bank; it has no gradient.

        Args:
            features: of B rows.
            indices: [B] replay buffer indices: a copy of a transition, in batch or bank, is no neighbor of it.
            window: for rollouts, search only this many rows near each row; without the bank.
            num_rollouts: for rollouts, number of environments whose rows alternate; each is searched separately,
                without the bank.
            num_batches: number of batches by which the running scales advance.
            vectors: [B, D] normalized state vectors, with `include_vectors`.

        """
        check_replay_or_rollouts(indices, num_rollouts)
        with torch.autocast(features.mask.device.type, enabled=False):
            num_updates = num_batches if self.training else 0
            if self.bank is None or window is not None or num_rollouts > 1:
                reward = self.compute_unscaled_reward(
                    features,
                    indices=indices,
                    window=window,
                    num_rollouts=num_rollouts,
                    num_batches=num_updates,
                    vectors=vectors,
                )
            else:
                row_indices, reference = self._make_reference(self.bank, features, indices)
                reward = self.compute_unscaled_reward(
                    features, indices=row_indices, reference=reference, num_batches=num_updates
                )
                if self.training:
                    self.bank.push(features, torch.full_like(row_indices, -1) if indices is None else indices)
            return self._scale_reward(reward, features.mask.any(1, keepdim=True), num_batches=num_updates)

    @staticmethod
    def _make_reference(bank: FeatureBank, features: Features, indices: Tensor | None) -> tuple[Tensor, ReferenceSet]:
        """Return the batch's row indices and the set to search: batch and bank."""
        if indices is None:
            indices = FIRST_SUBSTITUTE - torch.arange(len(features.mask), device=features.mask.device)
        return indices, bank.make_reference(features, indices)

    @torch.no_grad()
    def reward_distances(self, distances: Tensor, mask: Tensor) -> Tensor:
        """Return r̂ [B] of Eq. 9 for distances [B, V + 1] of another search, or [B, 1] with `joint`.

        `mask` [B, V] marks the present views.
        """
        num_updates, present = 1 if self.training else 0, mask.any(1, keepdim=True)
        reward = self._reward_distances(distances, self._make_terms_mask(mask), num_batches=num_updates)
        return self._scale_reward(reward, present, num_batches=num_updates)

    def _make_terms_mask(self, mask: Tensor) -> Tensor:
        """Return the mask of the distances, as `compute_distances` does."""
        present = mask.any(1, keepdim=True)
        return present if self.config.entropy == "joint" else torch.cat([mask, present], dim=1)

    def _find_reference(self, features: Features, indices: Tensor | None) -> tuple[Tensor | None, ReferenceSet | None]:
        """Return row indices and search set of a replay batch; no set without a bank: the batch itself."""
        return (indices, None) if self.bank is None else self._make_reference(self.bank, features, indices)

    def compute_unscaled_reward(
        self,
        features: Features,
        *,
        indices: Tensor | None = None,
        reference: ReferenceSet | None = None,
        window: int | None = None,
        num_rollouts: int = 1,
        num_batches: int,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """Return r̂ of Eq. 9 before `reward_scale`, with distances in `distance_scale`.

        The running mean of the distances first advances by `num_batches` batches.
        """
        config = self.config
        distances, mask = compute_distances(
            features,
            k=config.k,
            entropy=config.entropy,
            indices=indices,
            reference=reference,
            window=window,
            num_rollouts=num_rollouts,
        )
        if vectors is not None:
            # A state vector has no mask; it counts where a view is present, as x̄ does.
            vector_distances = compute_vector_distances(
                vectors, k=config.k, indices=indices, window=window, num_rollouts=num_rollouts
            )
            distances = torch.cat([distances, vector_distances], dim=1)
            mask = torch.cat([mask, mask.any(1, keepdim=True)], dim=1)
        return self._reward_distances(distances, mask, num_batches=num_batches)

    def _reward_distances(self, distances: Tensor, mask: Tensor, *, num_batches: int) -> Tensor:
        if self.config.distance_scale == "relative":
            if num_batches:
                self.distance_moments.update(distances, mask, num_batches=num_batches)
            distances = self.distance_moments.divide(distances, self.distance_moments.mean)
        return intrinsic_reward(distances, mask)

    def _scale_reward(self, reward: Tensor, present: Tensor, *, num_batches: int) -> Tensor:
        if num_batches and self.config.reward_scale != "raw":
            self.reward_moments.update(reward.unsqueeze(1), present, num_batches=num_batches)
        return self.reward_moments.scale_reward(reward, self.config.reward_scale)

    @torch.no_grad()
    def compute_drift(self, features: Features, past_features: Features, *, indices: Tensor | None = None) -> Tensor:
        """Return mean |f - f_past| / mean distance of f to its k-th neighbor, over the terms that are present.

        `past_features` are those of the same images by an earlier encoder. Neighbors are searched as in
        `compute_reward`; with the joint entropy, f is the concatenation of a row's terms.
        """
        config = self.config
        row_indices, reference = self._find_reference(features, indices)
        distances, mask = compute_distances(
            features, k=config.k, entropy=config.entropy, indices=row_indices, reference=reference
        )
        squared = (features.terms - past_features.terms).square().sum(-1)  # [B, V + 1]
        motion = (squared if config.entropy == "marginal" else squared.sum(1, keepdim=True)).sqrt()
        return motion[mask].mean() / distances[mask].mean().clamp(min=1e-12)

    @torch.no_grad()
    def evaluate_reward(
        self,
        features: Features,
        *,
        indices: Tensor | None = None,
        distances: Tensor | None = None,
        vectors: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return r̂ [B] before and after `reward_scale`, searched as in `compute_reward`; no state changes.

        `distances` are those of another search, as in `reward_distances`.
        """
        if distances is not None:
            reward = self._reward_distances(distances, self._make_terms_mask(features.mask), num_batches=0)
        else:
            row_indices, reference = self._find_reference(features, indices)
            reward = self.compute_unscaled_reward(
                features, indices=row_indices, reference=reference, num_batches=0, vectors=vectors
            )
        return reward, self.reward_moments.scale_reward(reward, self.config.reward_scale)
