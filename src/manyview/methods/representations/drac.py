"""DrAC and UCB-DrAC (Raileanu et al., 2020): act and value alike on augmented images.

L = coef * [-mean log π(a' | f(o)) + mean (V(o) - V(f(o)))² / 2], with a' drawn from π(· | o); neither a' nor V(o) has a
gradient. f is one augmentation for `drac`, and chosen by a bandit before the updates on each rollout for `ucb_drac`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyview.data.augmentation import Augmentation, augment_views, check_image_shape
from manyview.data.batch import Minibatch
from manyview.methods.interfaces import BuildContext
from manyview.methods.registry import register_representation
from manyview.methods.representations.pixel import PixelEncoder, PixelEncoderConfig
from manyview.utils.validation import check_at_least

ARMS: tuple[Augmentation, ...] = (
    "crop",
    "random_conv",
    "grayscale",
    "flip",
    "rotate",
    "cutout",
    "cutout_color",
    "color_jitter",
)
"""Augmentations that the bandit chooses from, in the authors' order: the first of equal ones is chosen."""


@dataclass(frozen=True, kw_only=True)
class DrACConfig(PixelEncoderConfig):
    """Settings of DrAC."""

    augmentation: Augmentation = "crop"
    """Augmentation of the images; it should not change what the best action is."""
    coef: float = 0.1
    """Weight of the loss of policy and value function on augmented images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, "coef")


@dataclass(frozen=True, kw_only=True)
class UCBDrACConfig(PixelEncoderConfig):
    """Settings of UCB-DrAC."""

    coef: float = 0.1
    """Weight of the loss of policy and value function on augmented images."""
    exploration_coef: float = 0.1
    """Weight c of the bandit's exploration term, against the mean return of a rollout."""
    window: int = 10
    """Rollouts of an augmentation whose mean return is its value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, "coef", "exploration_coef")
        check_at_least(self, 1, "window")


class DrAC(PixelEncoder):
    """Pixel encoder that regularizes policy and value function by one augmentation.

    Each image of a minibatch gets its own draw, which all its stacked frames share.
    """

    def __init__(self, config: DrACConfig | UCBDrACConfig, context: BuildContext) -> None:
        super().__init__(context.num_views, context.image_shape, config)
        self.coef, self.frame_stack = config.coef, context.frame_stack
        self.augmentations = (config.augmentation,) if isinstance(config, DrACConfig) else ARMS
        self.generator = torch.Generator().manual_seed(context.seed)
        channels, height, width = context.frame_shape
        for augmentation in self.augmentations:
            check_image_shape(augmentation, (3 if channels == 1 else channels, height, width))

    @property
    def augmentation(self) -> Augmentation:
        """The augmentation of the current updates."""
        return self.augmentations[0]

    def start_updates(self, returns: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """Do nothing: the augmentation is fixed."""
        return {}

    def compute_policy_loss(
        self, batch: Minibatch, distribution: Any, value: Tensor, evaluate: Callable[[Tensor], tuple[Any, Tensor]]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss on newly augmented images, and its two terms as metrics."""
        # PAPER: D43. One draw per view: cameras of one scene need not see the same distortion.
        key = self._draw_keys(batch.mask)  # [B, V]
        with torch.no_grad():
            action = distribution.sample(self._draw_keys(value))
        augmented = augment_views(batch.views, key, self.augmentation, frame_stack=self.frame_stack)
        augmented_distribution, augmented_value = evaluate(self.encode(augmented, batch.mask).state)
        policy_loss = -augmented_distribution.log_prob(action).mean()
        value_loss = 0.5 * (value.detach() - augmented_value).square().mean()
        metrics = {"drac_policy_loss": policy_loss.detach(), "drac_value_loss": value_loss.detach()}
        return self.coef * (policy_loss + value_loss), metrics

    def _draw_keys(self, like: Tensor) -> Tensor:
        """Draw a key of random numbers for each element of `like`, on its device."""
        device = self.generator.device
        return torch.randint(2**63 - 1, like.shape, generator=self.generator, device=device).to(like.device)


class UCBDrAC(DrAC):
    """DrAC with a bandit that chooses the augmentation by its upper confidence bound.

    Reward of a choice is the mean return of the rollout after its updates.
    """

    counts: Tensor
    window: Tensor
    chosen: Tensor

    def __init__(self, config: UCBDrACConfig, context: BuildContext) -> None:
        super().__init__(config, context)
        self.exploration_coef = config.exploration_coef
        self.register_buffer("counts", torch.ones(len(ARMS), dtype=torch.int64))  # 1 + rollouts that were rewarded
        self.register_buffer("window", torch.zeros(len(ARMS), config.window))  # latest mean returns, a ring per arm
        self.register_buffer("chosen", torch.tensor(-1))  # arm of the current updates, -1 before the first

    @property
    def augmentation(self) -> Augmentation:
        """The augmentation of the current updates."""
        return ARMS[int(self.chosen)]

    @property
    def total(self) -> Tensor:
        """N, 1 plus all rollouts that were rewarded."""
        return 1 + (self.counts - 1).sum()

    def compute_values(self) -> Tensor:
        """Return the mean return Q [8] of each augmentation's window, 0 where it is empty."""
        return self.window.sum(1) / (self.counts - 1).clamp(1, self.window.shape[1])

    def compute_ucb(self) -> Tensor:
        """Return the upper confidence bounds [8]: Q(f) + c sqrt(ln N / N(f))."""
        return self.compute_values() + self.exploration_coef * (self.total.log() / self.counts).sqrt()

    @torch.no_grad()
    def start_updates(self, returns: Tensor) -> dict[str, Tensor]:
        """Reward the last choice by the mean of `returns` [T, E], then choose again."""
        # PAPER: D44. Once per rollout, as in the authors' code; the text may be read as once per minibatch.
        if self.chosen >= 0:  # the first rollout follows no updates
            slot = (self.counts[self.chosen] - 1) % self.window.shape[1]
            self.window[self.chosen, slot] = returns.mean()
            self.counts[self.chosen] += 1
        self.chosen.copy_(self.compute_ucb().argmax())
        share = self.counts[self.chosen] / self.total  # of all choices so far, with this one
        return {"drac_augmentation": self.chosen.float(), "drac_share": share}


register_representation("drac", DrACConfig, data=("rollout",))(DrAC)
register_representation("ucb_drac", UCBDrACConfig, data=("rollout",))(UCBDrAC)
