"""DRIBO (Fan and Li, 2022): a recurrent encoder, trained by an information bottleneck between two views of a sequence.

The policy acts on the recurrent state. An update of DRIBO's own loss follows each update of the agent.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.data.sequences import Sequences
from manyview.methods.interfaces import BuildContext, RunSettings
from manyview.methods.registry import register_representation
from manyview.nn.optim import make_adam, optimizer_step
from manyview.nn.rssm import RSSM, DiagonalGaussian
from manyview.nn.trunks import Trunk, init_orthogonal, make_trunk, normalize_images
from manyview.utils.validation import (
    MAX_UNITS,
    SettingError,
    check_at_least,
    check_at_most,
    check_choices,
    check_positive,
    check_unit_interval,
)


@dataclass(frozen=True, kw_only=True)
class DRIBOConfig:
    """Settings of DRIBO."""

    sequence_length: int = 32
    """Consecutive observations of a sequence; a batch has `replay.batch_size` of them in all."""
    cameras: Literal["first", "all"] = "first"
    """Cameras that the encoder sees: the `first`, or `all`, side by side. The two views of the loss are two random
    augmentations of them."""
    trunk: Trunk = "paper"
    """Convolutions, see `representation=mem`."""
    latent_dim: int = 1024
    """Dimension of an image's embedding, per camera."""
    deterministic_dim: int = 200
    """Dimension of the GRU's state."""
    stochastic_dim: int = 30
    """Dimension of the Gaussian part of the state."""
    hidden: int = 1024
    """Hidden width of the recurrent model."""
    lr: float = 1e-5
    """Learning rate of DRIBO's own loss; the critic's loss trains the encoder at `agent.encoder_lr`."""
    train_bilinear: bool = True
    """Train the matrix W of the similarity z₁ᵀ W z₂. The authors' code leaves it at its random start."""
    kl_balance: float = 0.8
    """Share of the KL divergence that trains the prior toward the posterior; the rest trains the posterior."""
    kl_start: float = 1e-4
    """First weight of the KL terms."""
    kl_end: float = 1e-3
    """Last weight of the KL terms, reached exponentially."""
    kl_start_updates: int = 10_000
    """Updates with the first weight."""
    kl_ramp_updates: int = 50_000
    """Updates from the first weight to the last."""

    def __post_init__(self) -> None:
        sizes = ("latent_dim", "deterministic_dim", "stochastic_dim", "hidden")
        check_choices(self)
        check_at_least(self, 1, *sizes, "kl_ramp_updates")
        check_at_least(self, 2, "sequence_length")
        check_at_least(self, 0, "kl_start_updates")
        check_at_most(self, MAX_UNITS, *sizes, "sequence_length")
        check_positive(self, "lr", "kl_start", "kl_end")
        check_unit_interval(self, "kl_balance")

    def check(self, run: RunSettings) -> None:
        """Check that batches hold whole sequences, and that two views of one differ."""
        parts = run.scale.learners * run.scale.replay_shards
        if run.replay.batch_size % (parts * self.sequence_length):
            raise SettingError(
                "sequence_length",
                f"expected a divisor of replay.batch_size, {run.replay.batch_size}"
                + (f", over {parts} learners and shards" if parts > 1 else "")
                + f", got {self.sequence_length}",
            )
        if run.replay.augmentation == "none":
            raise ValueError(
                "representation=dribo compares two augmentations: expected replay.augmentation=crop or shift, got none"
            )
        if run.agent.view_dropout:
            raise ValueError(
                "representation=dribo encodes s_t and s_{t+n} together: expected agent.view_dropout=0, got "
                f"{run.agent.view_dropout}"
            )


class DRIBOFeatures(NamedTuple):
    """Features of DRIBO, with the distributions that its loss compares."""

    state: Tensor  # [B, Z + D], stochastic and deterministic part
    mask: Tensor  # [B, V]
    mean: Tensor  # [B, Z], of the posterior
    std: Tensor  # [B, Z]
    prior_mean: Tensor  # [B, Z]
    prior_std: Tensor  # [B, Z]

    @property
    def posterior(self) -> DiagonalGaussian:
        return DiagonalGaussian(self.mean, self.std)

    @property
    def prior(self) -> DiagonalGaussian:
        return DiagonalGaussian(self.prior_mean, self.prior_std)


class DRIBO(nn.Module):
    """Convolutions and a recurrent state-space model; the state is the policy's."""

    uses_next_features = False
    updates: Tensor

    def __init__(
        self, num_views: int, image_shape: tuple[int, int, int], action_dim: int, config: DRIBOConfig | None = None
    ) -> None:
        super().__init__()
        self.config = config = config or DRIBOConfig()
        self.num_cameras = num_views if config.cameras == "all" else 1
        self.trunk, flat_dim = make_trunk(image_shape, config.trunk)
        self.head = nn.Sequential(nn.Linear(flat_dim, config.latent_dim), nn.LayerNorm(config.latent_dim))
        self.apply(init_orthogonal)
        self.absent_token = nn.Parameter(torch.zeros(self.num_cameras, config.latent_dim))
        self.rssm = RSSM(
            self.num_cameras * config.latent_dim,
            action_dim,
            deterministic_dim=config.deterministic_dim,
            stochastic_dim=config.stochastic_dim,
            hidden=config.hidden,
        )
        self.action_dim, self.state_dim = action_dim, config.stochastic_dim + config.deterministic_dim
        # PAPER: D45. The publication learns W; no optimizer of its code steps it.
        similarity = torch.rand(self.state_dim, self.state_dim)
        self.similarity = nn.Parameter(similarity, requires_grad=config.train_bilinear)
        self.optimizer = make_adam([p for p in self.parameters() if p.requires_grad], lr=config.lr)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @property
    def memory_sizes(self) -> Mapping[str, int]:
        config = self.config
        sizes = {"deterministic": config.deterministic_dim, "stochastic": config.stochastic_dim}
        return {**sizes, "previous_action": self.action_dim}

    def encode(self, views: Tensor, mask: Tensor | None = None) -> DRIBOFeatures:
        """Encode `views` [B, V, C, H, W] as the first observations of their episodes."""
        if mask is None:
            mask = torch.ones(views.shape[:2], dtype=torch.bool, device=views.device)
        start = {name: torch.zeros(len(views), size, device=views.device) for name, size in self.memory_sizes.items()}
        return self.step(start, views, mask, start["previous_action"])[1]

    def step(
        self,
        state: Mapping[str, Tensor],
        views: Tensor,
        mask: Tensor,
        previous_action: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[dict[str, Tensor], DRIBOFeatures]:
        embedding = self._embed(views, mask)
        with torch.autocast(views.device.type, enabled=False):
            noise = None if generator is None else _sample_noise(generator, state["stochastic"])
            deterministic, stochastic, posterior = self.rssm.step(
                state["deterministic"], state["stochastic"], embedding, previous_action, noise
            )
            prior = self.rssm.prior.predict(deterministic)
        features = DRIBOFeatures(torch.cat([stochastic, deterministic], 1), mask, *posterior, *prior)
        return {"deterministic": deterministic, "stochastic": stochastic}, features

    def encode_sequences(self, sequences: Sequences, generator: torch.Generator | None = None) -> DRIBOFeatures:
        embedding = sequences.pad(self._embed(sequences.views, sequences.mask))  # [T, B, E]
        with torch.autocast(embedding.device.type, enabled=False):
            noise = None
            if generator is not None:
                noise = _sample_noise(generator, embedding[..., :1].expand(-1, -1, self.config.stochastic_dim))
            deterministic, stochastic, (mean, std) = self.rssm(
                embedding, sequences.pad(sequences.previous_action), noise
            )
            # Outputs after the end of a sequence are dropped here: they reach no loss and no gradient.
            deterministic, stochastic, mean, std = map(sequences.unpad, (deterministic, stochastic, mean, std))
            prior = self.rssm.prior.predict(deterministic)
        state = torch.cat([stochastic, deterministic], 1)
        return DRIBOFeatures(state, sequences.mask, mean, std, *prior)

    def compute_loss(
        self,
        features: DRIBOFeatures,
        next_features: DRIBOFeatures | None,  # noqa: ARG002
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return 0: `update_sequences` takes the step of DRIBO's loss, with its own optimizer."""
        return features.state.new_zeros(()), {}

    def update_sequences(
        self, first: Sequences, second: Sequences, target: "DRIBO", generator: torch.Generator
    ) -> dict[str, Tensor]:
        features = self.encode_sequences(first, generator)
        with torch.no_grad():
            keys = target.encode_sequences(second, generator)
        with torch.autocast(features.state.device.type, enabled=False):
            info_nce = compute_info_nce(features.state, keys.state, self.similarity)
            symmetric_kl = compute_symmetric_kl(features.posterior, keys.posterior)
            balanced_kl = compute_balanced_kl(features.posterior, features.prior, self.config.kl_balance)
            kl_weight = self.compute_kl_weight(int(self.updates))
            loss = info_nce + kl_weight * (symmetric_kl + balanced_kl)
        metrics = {
            "dribo_loss": info_nce,
            "dribo_symmetric_kl": symmetric_kl,
            "dribo_balanced_kl": balanced_kl,
            "dribo_kl_weight": info_nce.new_tensor(kl_weight),
            # PAPER: D45. Once; in the authors' code two optimizers step on the same gradient.
            "dribo_grad_norm": optimizer_step(loss, self.optimizer),
        }
        self.updates += 1
        return {name: value.detach() for name, value in metrics.items()}

    def compute_kl_weight(self, updates: int) -> float:
        """Return the weight of the KL terms after `updates` updates."""
        config = self.config
        progress = (updates - config.kl_start_updates) / config.kl_ramp_updates
        return config.kl_start * math.pow(config.kl_end / config.kl_start, min(1.0, max(0.0, progress)))

    def _embed(self, views: Tensor, mask: Tensor) -> Tensor:
        """Return the embeddings [B, E] of the cameras' images; a learned token replaces that of an absent one."""
        views, mask = views[:, : self.num_cameras], mask[:, : self.num_cameras]
        pixels = normalize_images(views.flatten(0, 1), self.absent_token.dtype)
        embedding = self.head(self.trunk(pixels)).float().unflatten(0, mask.shape)
        return torch.where(mask.unsqueeze(-1), embedding, self.absent_token).flatten(1)


def compute_info_nce(states: Tensor, keys: Tensor, similarity: Tensor) -> Tensor:
    """Return the cross entropy of finding the key [N, S] of each state [N, S] by the bilinear `similarity`."""
    logits = states @ similarity @ keys.t()  # [N, N]
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def compute_symmetric_kl(first: DiagonalGaussian, second: DiagonalGaussian) -> Tensor:
    """Return the mean of both KL divergences between two posteriors [N, Z]."""
    return (first.kl_divergence(second) + second.kl_divergence(first)).mean() / 2


def compute_balanced_kl(posterior: DiagonalGaussian, prior: DiagonalGaussian, balance: float) -> Tensor:
    """Return the mean KL(posterior || prior), of whose gradient the prior gets `balance` and the posterior the rest."""
    to_prior = posterior.detach().kl_divergence(prior).mean()
    to_posterior = posterior.kl_divergence(prior.detach()).mean()
    return balance * to_prior + (1 - balance) * to_posterior


def _sample_noise(generator: torch.Generator, like: Tensor) -> Tensor:
    """Return standard normal noise of the shape of `like`, drawn on the CPU: equal on every device."""
    return torch.randn(like.shape, generator=generator, device=generator.device).to(like.device)


@register_representation("dribo", DRIBOConfig, data=("sequences",))
def build_dribo(config: DRIBOConfig, context: BuildContext) -> DRIBO:
    """Build DRIBO."""
    return DRIBO(context.num_views, context.image_shape, context.actions.size, config)
