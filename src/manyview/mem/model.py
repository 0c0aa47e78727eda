"""MEM: one encoder that represents the views, and pays for exploring them."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.mem.bank import FeatureBank
from manyview.mem.config import MEMConfig
from manyview.mem.encoder import Encoder, Features
from manyview.mem.health import Health, measure_health
from manyview.mem.losses import adv_loss, con_loss, diff_loss, discriminator_loss, total_loss
from manyview.mem.reward import intrinsic_reward, reward_distances
from manyview.mem.running import RunningMoments
from manyview.mem.upkeep import decorrelation, temporal_closeness, temporal_contrast, variance_floor

_TINY = 1e-8


class MEM(nn.Module):
    """Encoder, discriminator, losses and reward over named views.

        features, later = mem.encode(views), mem.encode(next_views)
        loss, metrics = mem.loss(features, later)             # add it to the critic's loss: one backward for both
        reward = reward_ext + beta(step) * mem.reward(features)
        mem.update_discriminator(features)                    # its own small Adam step

    Train `mem.parameters()`: `loss` leaves the discriminator among them alone, as does everything but
    `update_discriminator`, which trains nothing else. In training mode `reward` also moves the running scales and
    fills the bank, as batch norm moves its statistics. To save a run keep `mem.state_dict()` and
    `mem.discriminator_optimizer.state_dict()`: together they are all the state there is.
    """

    def __init__(
        self, views: Sequence[str], image_shape: tuple[int, int, int], config: MEMConfig | None = None
    ) -> None:
        super().__init__()
        if len(set(views)) != len(views):
            raise ValueError(f"expected different view names, got {list(views)}")
        config = config or MEMConfig()
        self.views, self.config = tuple(views), config
        self.encoder = Encoder(
            len(self.views),
            image_shape,
            latent_dim=config.latent_dim,
            trunk=config.trunk,
            affine_norm=config.affine_norm,
        )
        self.discriminator = nn.Linear(config.latent_dim, len(self.views))
        self.discriminator_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=config.discriminator_lr)
        terms = 1 if config.entropy == "joint" else len(self.views) + 1
        self.distance_moments = RunningMoments(terms)
        self.reward_moments = RunningMoments(1)
        self.bank = FeatureBank(config.bank, len(self.views) + 1, config.latent_dim) if config.bank else None

    @property
    def state_dim(self) -> int:
        return self.encoder.state_dim

    def forward(self, views: Tensor, mask: Tensor | None = None) -> Features:
        return self.encode(views, mask)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Features:
        """`views` [B, V, C, H, W] uint8 and which of them are present, to features."""
        features: Features = self.encoder(views, mask)
        return features

    def loss(self, features: Features, later: Features | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """L_total of Eq. 6 and our upkeep terms; `later` are features of a following step of the same episodes."""
        config, mask = self.config, features.mask
        with torch.autocast(mask.device.type, enabled=False):
            # Copies: θ answers to the discriminator as it is now, and φ may take its step before θ's backward.
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
            both, both_mask = torch.cat([features.shared, features.specific], dim=1), mask.repeat(1, 2)
            if config.floor_coef:
                floor = variance_floor(both, both_mask, floor=config.floor)
                loss = loss + config.floor_coef * floor
                metrics["floor_loss"] = floor
            if config.decorrelation_coef:
                correlated = decorrelation(both, both_mask)
                loss = loss + config.decorrelation_coef * correlated
                metrics["decorrelation_loss"] = correlated
            if config.temporal_coef:
                if later is None:
                    raise ValueError(
                        f"temporal_coef is {config.temporal_coef}, so loss() needs the features of a later step: "
                        "pass them as loss(features, later), or set temporal_coef=0"
                    )
                both_seen = features.terms_mask & later.terms_mask
                if config.temporal == "closeness":
                    temporal = temporal_closeness(features.terms, later.terms, both_seen)
                else:
                    temporal = temporal_contrast(
                        features.terms, later.terms, both_seen, temperature=config.temporal_temperature
                    )
                loss = loss + config.temporal_coef * temporal
                metrics["temporal_loss"] = temporal
        metrics["mem_loss"] = loss
        return loss, {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def reward(self, features: Features, *, window: int | None = None) -> Tensor:
        """r̂ [B] of Eq. 9 for each row against the others and the bank; it never has a gradient.

        `window` is for large rollouts: each row is searched among so many near ones of the rollout alone.
        """
        config = self.config
        with torch.autocast(features.mask.device.type, enabled=False):
            among = None if self.bank is None else self.bank.reference(features)
            distances = reward_distances(features, k=config.k, entropy=config.entropy, among=among, window=window)
            mask = features.terms_mask[:, -distances.shape[1] :]
            if config.distance_scale == "relative":
                if self.training:
                    self.distance_moments.update(distances, mask)
                distances = distances / self.distance_moments.mean.clamp(min=_TINY)
            reward = intrinsic_reward(distances, mask)
            if config.reward_scale != "raw":
                if self.training:
                    self.reward_moments.update(reward.unsqueeze(1), torch.ones_like(mask[:, :1]))
                if config.reward_scale == "centered":
                    reward = reward - self.reward_moments.mean
                reward = reward / self.reward_moments.std.clamp(min=_TINY)
            if self.bank is not None and self.training:
                self.bank.push(features)
        return reward

    def update_discriminator(self, features: Features) -> dict[str, Tensor]:
        """One step of φ: name the view of each shared feature better. The encoder is not touched."""
        mask = features.mask
        with torch.autocast(mask.device.type, enabled=False):
            logits = self.discriminator(features.shared.detach())
            loss = discriminator_loss(logits, mask)
        self.discriminator_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.discriminator_optimizer.step()
        # Whoever trains all of `mem.parameters()` must not find this gradient and take the step twice.
        self.discriminator_optimizer.zero_grad(set_to_none=True)
        return {"discriminator_loss": loss.detach()}

    @torch.no_grad()
    def health(self, features: Features, *, beta: float) -> Health:
        """How features and bonus are doing on this batch. Changes nothing; worth asking every few hundred updates."""
        training = self.training
        try:
            reward = self.eval().reward(features)
        finally:
            self.train(training)
        return measure_health(
            features,
            self.views,
            distances=reward_distances(features, k=self.config.k),
            logits=self.discriminator(features.shared),
            reward=reward,
            beta=beta,
        )
