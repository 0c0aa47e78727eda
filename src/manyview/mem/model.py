"""MEM: one encoder that represents the views, and pays for exploring them."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.mem.bank import FeatureBank
from manyview.mem.config import MEMConfig
from manyview.mem.encoder import Encoder, Features
from manyview.mem.health import Health, measure_health
from manyview.mem.knn import Reference
from manyview.mem.losses import adv_loss, con_loss, diff_loss, discriminator_loss, total_loss
from manyview.mem.ranks import average_gradients
from manyview.mem.reward import intrinsic_reward, refuse_both, reward_distances
from manyview.mem.running import RunningMoments, reward_moments
from manyview.mem.upkeep import decorrelation, temporal_closeness, temporal_contrast, variance_floor


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
        if isinstance(views, str) or len(set(views)) != len(views):
            raise ValueError(f"expected a sequence of different view names, got {views!r}")
        config = config or MEMConfig()
        self.view_names, self.config = tuple(views), config
        self.encoder = Encoder(
            len(self.view_names),
            image_shape,
            latent_dim=config.latent_dim,
            trunk=config.trunk,
            affine_norm=config.affine_norm,
        )
        self.discriminator = nn.Linear(config.latent_dim, len(self.view_names))
        self.discriminator_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=config.discriminator_lr)
        terms = 1 if config.entropy == "joint" else len(self.view_names) + 1
        self.distance_moments = RunningMoments(terms)
        self.reward_moments = reward_moments(config.reward_scale)
        self.bank = FeatureBank(config.bank, len(self.view_names) + 1, config.latent_dim) if config.bank else None

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
        if later is not None and later.mask.shape != mask.shape:
            raise ValueError(f"expected later features for [B, V] = {list(mask.shape)}, got {list(later.mask.shape)}")
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
            for name, (coef, term) in self._upkeep(features, later).items():
                loss = loss + coef * term
                metrics[name] = term
        metrics["mem_loss"] = loss
        return loss, {name: value.detach() for name, value in metrics.items()}

    def _upkeep(self, features: Features, later: Features | None) -> dict[str, tuple[float, Tensor]]:
        """What the features need to live and the paper does not have, each with its weight, if that is not 0."""
        config = self.config
        terms: dict[str, tuple[float, Tensor]] = {}
        both, mask = torch.cat([features.shared, features.specific], dim=1), features.mask.repeat(1, 2)
        if config.floor_coef:
            terms["floor_loss"] = config.floor_coef, variance_floor(both, mask, floor=config.floor)
        if config.decorrelation_coef:
            terms["decorrelation_loss"] = config.decorrelation_coef, decorrelation(both, mask)
        if config.temporal_coef:
            if later is None:
                raise ValueError(
                    f"temporal_coef is {config.temporal_coef}, so loss() needs the features of a later step: "
                    "pass them as loss(features, later), or set temporal_coef=0"
                )
            now, then, seen = features.terms, later.terms, features.terms_mask & later.terms_mask
            if config.temporal == "closeness":
                tie = temporal_closeness(now, then, seen)
            else:
                tie = temporal_contrast(now, then, seen, temperature=config.temporal_temperature)
            terms["temporal_loss"] = config.temporal_coef, tie
        return terms

    @torch.no_grad()
    def reward(
        self,
        features: Features,
        *,
        rows: Tensor | None = None,
        window: int | None = None,
        apart: int = 1,
        batches: int = 1,
    ) -> Tensor:
        """r̂ [B] of Eq. 9 for each row against the others and the bank; it never has a gradient.

        `rows` [B] are the rows' places in the replay: a copy of a transition, in batch or bank, is then no neighbour
        of it. The others are for rollouts, which no bank is asked about: with a `window` each row is searched among so
        many near ones only; rows of several environments in turn are searched `apart`, each among its own. Running
        scales move as by so many `batches`.
        """
        refuse_both(rows, apart)
        with torch.autocast(features.mask.device.type, enabled=False):
            learned = batches if self.training else 0
            if self.bank is None or window is not None or apart > 1:
                reward = self._reward(features, rows=rows, window=window, apart=apart, batches=learned)
            else:
                own, among = self._among(self.bank, features, rows)
                reward = self._reward(features, rows=own, among=among, batches=learned)
                if self.training:
                    self.bank.push(features, torch.full_like(own, -1) if rows is None else rows)
            if learned and self.config.reward_scale != "raw":
                there = features.mask.any(1, keepdim=True)
                self.reward_moments.update(reward.unsqueeze(1), there, batches=learned)
            return self.reward_moments.scaled(reward, self.config.reward_scale)

    @staticmethod
    def _among(bank: FeatureBank, features: Features, rows: Tensor | None) -> tuple[Tensor, Reference]:
        """The batch's rows by number, and what they are searched among: each other and the bank."""
        # Without numbers every row is only ever itself; the bank's rows are then nobody in particular.
        own = -2 - torch.arange(len(features.mask), device=features.mask.device) if rows is None else rows
        return own, bank.reference(features, own)

    def _reward(
        self,
        features: Features,
        *,
        rows: Tensor | None = None,
        among: Reference | None = None,
        window: int | None = None,
        apart: int = 1,
        batches: int,
    ) -> Tensor:
        """Eq. 9, its distances in the scale of the configuration, which is first moved as by so many `batches`."""
        config = self.config
        distances, mask = reward_distances(
            features, k=config.k, entropy=config.entropy, rows=rows, among=among, window=window, apart=apart
        )
        if config.distance_scale == "relative":
            if batches:
                self.distance_moments.update(distances, mask, batches=batches)
            distances = self.distance_moments.divide(distances, self.distance_moments.mean)
        return intrinsic_reward(distances, mask)

    def update_discriminator(self, features: Features) -> dict[str, Tensor]:
        """One step of φ: name the view of each shared feature better. The encoder is not touched."""
        mask = features.mask
        with torch.enable_grad(), torch.autocast(mask.device.type, enabled=False):
            logits = self.discriminator(features.shared.detach())
            loss = discriminator_loss(logits, mask)
        self.discriminator_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(self.discriminator.parameters())
        self.discriminator_optimizer.step()
        # Whoever trains all of `mem.parameters()` must not find this gradient and take the step twice.
        self.discriminator_optimizer.zero_grad(set_to_none=True)
        return {"discriminator_loss": loss.detach()}

    @torch.no_grad()
    def health(self, features: Features, *, beta: float, rows: Tensor | None = None) -> Health:
        """How features and bonus are doing in this batch. Changes nothing; ask every few hundred updates.

        `rows` as for `reward`, which is searched for as there; what each view pays is of the batch alone.
        """
        distances, _ = reward_distances(features, k=self.config.k, rows=rows)
        own, among = (rows, None) if self.bank is None else self._among(self.bank, features, rows)
        reward = self._reward(features, rows=own, among=among, batches=0)
        return measure_health(
            features,
            self.view_names,
            distances=distances,
            logits=self.discriminator(features.shared),
            reward=reward,
            paid=self.reward_moments.scaled(reward, self.config.reward_scale),
            beta=beta,
        )
