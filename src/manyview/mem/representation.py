"""MEM's representation: the encoder with L_total (Eq. 6), the regularizers and the discriminator."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.mem.bonus import EntropyBonus
from manyview.mem.config import MEMRepresentationConfig
from manyview.mem.diagnostics import Diagnostics, compute_diagnostics
from manyview.mem.encoder import Encoder, Features
from manyview.mem.losses import adv_loss, con_loss, diff_loss, discriminator_gradient, discriminator_loss, total_loss
from manyview.mem.regularizers import (
    compute_covariance,
    decorrelation_loss,
    temporal_closeness_loss,
    temporal_contrast_loss,
    variance_floor_loss,
)
from manyview.mem.reward import compute_distances, intrinsic_reward
from manyview.nn.optim import make_adam
from manyview.utils.distributed import average_gradients


class MEMRepresentation(nn.Module):
    """Encoder F_θ, its losses and the discriminator D_φ.

    Optimize `parameters()`: `compute_loss` gives the discriminator no gradient; only `update_discriminator` trains
    it, and trains nothing else.
    """

    def __init__(
        self,
        view_names: Sequence[str],
        image_shape: tuple[int, int, int],
        config: MEMRepresentationConfig | None = None,
    ) -> None:
        super().__init__()
        if isinstance(view_names, str) or len(set(view_names)) != len(view_names):
            raise ValueError(f"invalid view_names: expected a sequence of different view names, got {view_names!r}")
        config = config or MEMRepresentationConfig()
        self.view_names, self.config = tuple(view_names), config
        self.encoder = Encoder(
            len(self.view_names),
            image_shape,
            latent_dim=config.latent_dim,
            trunk=config.trunk,
            affine_norm=config.affine_norm,
        )
        self.discriminator = nn.Linear(config.latent_dim, len(self.view_names))
        self.discriminator_optimizer = make_adam(self.discriminator.parameters(), lr=config.discriminator_lr)

    @property
    def state_dim(self) -> int:
        return self.encoder.state_dim

    @property
    def uses_next_features(self) -> bool:
        """True if `compute_loss` needs `next_features`."""
        return self.config.temporal_coef > 0

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
        if config.floor_coef or config.decorrelation_coef:
            all_features = torch.cat([features.shared, features.specific], dim=1)  # [B, 2V, P]
            covariance = compute_covariance(all_features, features.mask.repeat(1, 2))
            if config.floor_coef:
                losses["floor_loss"] = config.floor_coef, variance_floor_loss(covariance, floor=config.floor)
            if config.decorrelation_coef:
                losses["decorrelation_loss"] = config.decorrelation_coef, decorrelation_loss(covariance)
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

    def update(self, batch: object, features: Features) -> dict[str, Tensor]:  # noqa: ARG002
        """Take the discriminator's step, as agents call it with the batch of `features`."""
        return self.update_discriminator(features)

    def update_discriminator(self, features: Features) -> dict[str, Tensor]:
        """Take one step of the discriminator φ on detached features and return its loss (Eq. 5)."""
        shared, mask = features.shared.detach(), features.mask
        with torch.no_grad(), torch.autocast(mask.device.type, enabled=False):
            logits = self.discriminator(shared)
            loss = discriminator_loss(logits, mask)
            # In closed form, at half the time of autograd for so small a layer.
            logits_grad = discriminator_gradient(logits, mask).flatten(0, 1)  # [B * V, V]
            self.discriminator.weight.grad = logits_grad.T @ shared.flatten(0, 1)
            self.discriminator.bias.grad = logits_grad.sum(0)
        average_gradients(self.discriminator.parameters())
        self.discriminator_optimizer.step()
        # An optimizer of all `mem.parameters()` must not apply this gradient a second time.
        self.discriminator_optimizer.zero_grad(set_to_none=True)
        return {"discriminator_loss": loss}

    @torch.no_grad()
    def diagnose(
        self,
        features: Features,
        *,
        bonus: EntropyBonus | None = None,
        beta: float = 0.0,
        indices: Tensor | None = None,
        distances: Tensor | None = None,
        vectors: Tensor | None = None,
    ) -> Diagnostics:
        """Compute health meters of features and `bonus` on a batch, without changing any state.

        Call it every few hundred updates. `indices` and the search set of r̂ are as in `EntropyBonus.compute_reward`,
        or `distances` are given as in `EntropyBonus.reward_distances`; `vectors` are as in the former. The share of
        each view is computed on the batch alone.
        """
        batch_distances, mask = compute_distances(features, k=3 if bonus is None else bonus.config.k, indices=indices)
        reward = intrinsic_reward(batch_distances, mask)
        scaled_reward = None
        if bonus is not None:
            reward, scaled_reward = bonus.evaluate_reward(
                features, indices=indices, distances=distances, vectors=vectors
            )
        return compute_diagnostics(
            features,
            self.view_names,
            distances=batch_distances,
            logits=self.discriminator(features.shared),
            reward=reward,
            scaled_reward=scaled_reward,
            beta=beta,
        )
