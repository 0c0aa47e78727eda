"""`MEM`: encoder, losses, intrinsic reward and diagnostics of the paper in one module."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.mem.config import MEMConfig
from manyview.mem.diagnostics import Diagnostics, compute_diagnostics
from manyview.mem.encoder import Encoder, Features
from manyview.mem.feature_bank import FeatureBank
from manyview.mem.knn import ReferenceSet
from manyview.mem.losses import adv_loss, con_loss, diff_loss, discriminator_loss, total_loss
from manyview.mem.regularizers import (
    decorrelation_loss,
    temporal_closeness_loss,
    temporal_contrast_loss,
    variance_floor_loss,
)
from manyview.mem.reward import check_replay_or_rollouts, compute_distances, intrinsic_reward
from manyview.nn.normalization import RunningMoments, make_reward_moments
from manyview.utils.distributed import average_gradients


class MEM(nn.Module):
    """Representation and bonus over named views.

        features, next_features = mem.encode(views), mem.encode(next_views)
        loss, metrics = mem.compute_loss(features, next_features)  # add to the critic's loss, one backward pass
        reward = reward_ext + beta(step) * mem.compute_reward(features)  # Eq. 9 and 10
        mem.update_discriminator(features)  # one Adam step

    Optimize `mem.parameters()`: `compute_loss` gives the discriminator no gradient; only `update_discriminator` trains
    it, and trains nothing else. In training mode `compute_reward` also updates running scales and the feature bank, as
    batch norm updates its statistics. The complete state is `mem.state_dict()` and
    `mem.discriminator_optimizer.state_dict()`.
    """

    def __init__(
        self, view_names: Sequence[str], image_shape: tuple[int, int, int], config: MEMConfig | None = None
    ) -> None:
        super().__init__()
        if isinstance(view_names, str) or len(set(view_names)) != len(view_names):
            raise ValueError(f"invalid view_names: expected a sequence of different view names, got {view_names!r}")
        config = config or MEMConfig()
        self.view_names, self.config = tuple(view_names), config
        self.encoder = Encoder(
            len(self.view_names),
            image_shape,
            latent_dim=config.latent_dim,
            trunk=config.trunk,
            affine_norm=config.affine_norm,
        )
        self.discriminator = nn.Linear(config.latent_dim, len(self.view_names))
        self.discriminator_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=config.discriminator_lr)
        num_terms = 1 if config.entropy == "joint" else len(self.view_names) + 1
        self.distance_moments = RunningMoments(num_terms)
        self.reward_moments = make_reward_moments(config.reward_scale)
        self.bank = FeatureBank(config.bank, len(self.view_names) + 1, config.latent_dim) if config.bank else None

    @property
    def state_dim(self) -> int:
        return self.encoder.state_dim

    def forward(self, views: Tensor, mask: Tensor | None = None) -> Features:
        return self.encode(views, mask)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Features:
        """Encode `views` [B, V, C, H, W] uint8; `mask` [B, V] bool marks present views (default: all)."""
        features: Features = self.encoder(views, mask)
        return features

    def compute_loss(
        self, features: Features, next_features: Features | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return L_total (Eq. 6) plus regularizers, and metrics.

        `next_features` are those of a later step of the same episodes, needed unless `temporal_coef` is 0.
        """
        config, mask = self.config, features.mask
        if next_features is not None and next_features.mask.shape != mask.shape:
            raise ValueError(
                f"next_features do not match features: expected [B, V] = {list(mask.shape)}, "
                f"got {list(next_features.mask.shape)}"
            )
        with torch.autocast(mask.device.type, enabled=False):
            # Copies: φ gets no gradient here, and may take its step before θ's backward pass.
            weight, bias = (p.detach().clone() for p in (self.discriminator.weight, self.discriminator.bias))
            logits = F.linear(features.shared, weight, bias)
            diff = diff_loss(features.shared, features.specific, mask, l1=config.l1)
            con = con_loss(
                features.specific,
                mask,
                margin=config.margin,
                margin_unit=config.margin_unit,
                others=config.others,
            )
            adv = adv_loss(logits, mask, adversary=config.adversary)
            loss = total_loss(
                diff, con, adv, diff_coef=config.diff_coef, con_coef=config.con_coef, adv_coef=config.adv_coef
            )
            metrics = {"diff_loss": diff, "con_loss": con, "adv_loss": adv}
            for name, (coef, term) in self._compute_regularizers(features, next_features).items():
                loss = loss + coef * term
                metrics[name] = term
        metrics["mem_loss"] = loss
        return loss, {name: value.detach() for name, value in metrics.items()}

    def _compute_regularizers(
        self, features: Features, next_features: Features | None
    ) -> dict[str, tuple[float, Tensor]]:
        """Return the active regularizers (not in the paper): metric name to (weight, loss)."""
        config = self.config
        losses: dict[str, tuple[float, Tensor]] = {}
        all_features, mask = torch.cat([features.shared, features.specific], dim=1), features.mask.repeat(1, 2)
        if config.floor_coef:
            losses["floor_loss"] = config.floor_coef, variance_floor_loss(all_features, mask, floor=config.floor)
        if config.decorrelation_coef:
            losses["decorrelation_loss"] = config.decorrelation_coef, decorrelation_loss(all_features, mask)
        if config.temporal_coef:
            if next_features is None:
                raise ValueError(
                    f"missing next_features: temporal_coef is {config.temporal_coef}, which needs the features of a "
                    "later step. Call compute_loss(features, next_features), or set temporal_coef=0"
                )
            current, later, present = (
                features.terms,
                next_features.terms,
                features.terms_mask & next_features.terms_mask,
            )
            if config.temporal == "closeness":
                temporal_loss = temporal_closeness_loss(current, later, present)
            else:
                temporal_loss = temporal_contrast_loss(current, later, present, temperature=config.temporal_temperature)
            losses["temporal_loss"] = config.temporal_coef, temporal_loss
        return losses

    @torch.no_grad()
    def compute_reward(
        self,
        features: Features,
        *,
        indices: Tensor | None = None,
        window: int | None = None,
        num_rollouts: int = 1,
        num_batches: int = 1,
    ) -> Tensor:
        """Return r̂ [B] of Eq. 9, searched in the batch and the feature bank; it has no gradient.

        Args:
            features: of B rows.
            indices: [B] replay buffer indices: a copy of a transition, in batch or bank, is no neighbor of it.
            window: for rollouts, search only this many rows near each row; without the bank.
            num_rollouts: for rollouts, number of environments whose rows alternate; each is searched separately,
                without the bank.
            num_batches: number of batches by which the running scales advance.

        """
        check_replay_or_rollouts(indices, num_rollouts)
        with torch.autocast(features.mask.device.type, enabled=False):
            num_updates = num_batches if self.training else 0
            if self.bank is None or window is not None or num_rollouts > 1:
                reward = self._compute_unscaled_reward(
                    features, indices=indices, window=window, num_rollouts=num_rollouts, num_batches=num_updates
                )
            else:
                row_indices, reference = self._make_reference(self.bank, features, indices)
                reward = self._compute_unscaled_reward(
                    features, indices=row_indices, reference=reference, num_batches=num_updates
                )
                if self.training:
                    self.bank.push(features, torch.full_like(row_indices, -1) if indices is None else indices)
            if num_updates and self.config.reward_scale != "raw":
                present = features.mask.any(1, keepdim=True)
                self.reward_moments.update(reward.unsqueeze(1), present, num_batches=num_updates)
            return self.reward_moments.scale_reward(reward, self.config.reward_scale)

    @staticmethod
    def _make_reference(bank: FeatureBank, features: Features, indices: Tensor | None) -> tuple[Tensor, ReferenceSet]:
        """Return the batch's row indices and the set to search: batch and bank."""
        # Without replay indices, rows get unique ones from -2 down; bank rows without an index have -1.
        row_indices = -2 - torch.arange(len(features.mask), device=features.mask.device) if indices is None else indices
        return row_indices, bank.make_reference(features, row_indices)

    def _compute_unscaled_reward(
        self,
        features: Features,
        *,
        indices: Tensor | None = None,
        reference: ReferenceSet | None = None,
        window: int | None = None,
        num_rollouts: int = 1,
        num_batches: int,
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
        if config.distance_scale == "relative":
            if num_batches:
                self.distance_moments.update(distances, mask, num_batches=num_batches)
            distances = self.distance_moments.divide(distances, self.distance_moments.mean)
        return intrinsic_reward(distances, mask)

    def update_discriminator(self, features: Features) -> dict[str, Tensor]:
        """Take one step of the discriminator φ on detached features and return its loss (Eq. 5)."""
        mask = features.mask
        with torch.enable_grad(), torch.autocast(mask.device.type, enabled=False):
            logits = self.discriminator(features.shared.detach())
            loss = discriminator_loss(logits, mask)
        self.discriminator_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(self.discriminator.parameters())
        self.discriminator_optimizer.step()
        # An optimizer of all `mem.parameters()` must not apply this gradient a second time.
        self.discriminator_optimizer.zero_grad(set_to_none=True)
        return {"discriminator_loss": loss.detach()}

    @torch.no_grad()
    def diagnose(self, features: Features, *, beta: float, indices: Tensor | None = None) -> Diagnostics:
        """Compute health meters of features and bonus on a batch, without changing any state.

        Call it every few hundred updates. `indices` and the search set of r̂ are as in `compute_reward`; the share of
        each view is computed on the batch alone.
        """
        distances, _ = compute_distances(features, k=self.config.k, indices=indices)
        row_indices, reference = (
            (indices, None) if self.bank is None else self._make_reference(self.bank, features, indices)
        )
        reward = self._compute_unscaled_reward(features, indices=row_indices, reference=reference, num_batches=0)
        return compute_diagnostics(
            features,
            self.view_names,
            distances=distances,
            logits=self.discriminator(features.shared),
            reward=reward,
            scaled_reward=self.reward_moments.scale_reward(reward, self.config.reward_scale),
            beta=beta,
        )
