"""What off-policy agents share: the seam to a representation and an intrinsic reward, and their own randomness."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyview.agents.agent import Agent, zero_beta
from manyview.agents.options import OffPolicyConfig
from manyview.data.batch import Batch
from manyview.data.shift import ShiftMode, random_shift
from manyview.mem.running import RunningMoments
from manyview.methods.protocols import Bonus, Representation


class OffPolicyAgent(Agent):
    """Learns from batches of a replay."""

    bonus: Bonus | None

    def __init__(
        self,
        representation: Representation,
        config: OffPolicyConfig,
        *,
        bonus: Bonus | None = None,
        beta: Callable[[int], float] = zero_beta,
        seed: int = 0,
    ) -> None:
        super().__init__(representation, bonus=bonus, beta=beta)
        self.config = config
        self.generator = torch.Generator().manual_seed(seed)
        self.target_moments = RunningMoments(1)

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """One update at agent step `step`; its metrics."""
        raise NotImplementedError

    @property
    def rewards_shifted_frames(self) -> bool:
        return self.has_shared_encoder and self.config.reward_frames == "shifted"

    @property
    def shift_mode(self) -> ShiftMode:
        # PAPER: D13. One shift for all where the reward sees it: each its own makes equal states look different.
        return "common" if self.rewards_shifted_frames else "each"

    def augment(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The augmented pictures of s_t and s_{t+n}."""
        views, next_views = (
            random_shift(pixels, self.config.shift_pixels, self.generator, self.shift_mode)
            for pixels in (batch.views, batch.next_views)
        )
        return views, next_views

    def compute_bonus(self, batch: Batch, augmented_views: Tensor, features: Any) -> Tensor:
        """r̂ [B] of Eq. 9 for s_t; `features` are what the representation made of the `augmented_views`."""
        if self.bonus is None:
            return torch.zeros_like(batch.reward_ext)
        if self.rewards_shifted_frames or (self.has_shared_encoder and augmented_views is batch.views):
            return self.bonus.compute_reward(features, indices=batch.indices)
        # PAPER: D13. On clean frames; so are bonuses with an encoder of their own, which costs them nothing more.
        return self.bonus.compute_reward(self.bonus.encode(batch.views, batch.mask), indices=batch.indices)

    def critic_input(self, state: Tensor) -> Tensor:
        """The state of s_t for the critic's loss."""
        # PAPER: D18. Algorithm 1 as it is written trains the encoder by L_total alone.
        return state if self.config.critic_trains_encoder else state.detach()

    @property
    def representation_loss_scale(self) -> Tensor:
        """The running variance of the critic's targets, at least 1: what a representation's loss is multiplied by.

        PAPER: D30. Where rewards are large the critic would otherwise drown that loss, and with it what keeps the
        features alive.
        """
        if not self.config.critic_trains_encoder:
            return self.target_moments.std.new_ones(())  # nothing to drown it
        return self.target_moments.std.square().clamp(min=1).squeeze(0)

    def update_target_stats(self, target: Tensor) -> None:
        """Once the step has been taken: targets that are not finite must not get here."""
        self.target_moments.update(target.unsqueeze(1))

    def sample_noise(self, like: Tensor) -> Tensor:
        """Standard normal, from the agent's own generator: the same on every device."""
        return torch.randn(like.shape, generator=self.generator, device=self.generator.device).to(like.device)
