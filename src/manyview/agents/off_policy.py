"""What off-policy agents share: the seam to a representation and an intrinsic reward, and their own randomness."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyview.agents.agent import Agent, no_bonus
from manyview.agents.options import OffPolicyConfig
from manyview.data.batch import Batch
from manyview.data.shift import ShiftDraw, random_shift
from manyview.mem.running import RunningMoments
from manyview.methods.protocols import Intrinsic, Representation


class OffPolicyAgent(Agent):
    """Learns from batches of a replay."""

    intrinsic: Intrinsic | None

    def __init__(
        self,
        representation: Representation,
        config: OffPolicyConfig,
        *,
        intrinsic: Intrinsic | None = None,
        beta: Callable[[int], float] = no_bonus,
        seed: int = 0,
    ) -> None:
        super().__init__(representation, intrinsic=intrinsic, beta=beta)
        self.config = config
        self.generator = torch.Generator().manual_seed(seed)
        self.target_moments = RunningMoments(1)

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """One update at agent step `step`; its metrics."""
        raise NotImplementedError

    @property
    def pays_shifted(self) -> bool:
        return self.pays_what_it_encodes and self.config.reward_frames == "shifted"

    @property
    def shift_draw(self) -> ShiftDraw:
        # PAPER: D13. One shift for all where the reward sees it: each its own makes equal states look different.
        return "common" if self.pays_shifted else "each"

    def shifted(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The augmented pictures of s_t and s_{t+n}."""
        now, then = (
            random_shift(pixels, self.config.shift_pixels, self.generator, self.shift_draw)
            for pixels in (batch.views, batch.next_views)
        )
        return now, then

    def reward_int(self, batch: Batch, shifted: Tensor, features: Any) -> Tensor:
        """r̂ [B] of Eq. 9 for s_t; `features` are what the representation made of the `shifted` frames."""
        if self.intrinsic is None:
            return torch.zeros_like(batch.reward_ext)
        if self.pays_shifted or (self.pays_what_it_encodes and shifted is batch.views):
            return self.intrinsic.reward(features, rows=batch.rows)
        # PAPER: D13. On clean frames; so are bonuses with an encoder of their own, which costs them nothing more.
        return self.intrinsic.reward(self.intrinsic.encode(batch.views, batch.mask), rows=batch.rows)

    def seen_by_critic(self, state: Tensor) -> Tensor:
        """The state of s_t for the critic's loss."""
        # PAPER: D18. Algorithm 1 as it is written trains the encoder by L_total alone.
        return state if self.config.critic_trains_encoder else state.detach()

    @property
    def critic_scale(self) -> Tensor:
        """The running variance of the critic's targets, at least 1: what a representation's loss is multiplied by.

        PAPER: D30. Where rewards are large the critic would otherwise drown that loss, and with it what keeps the
        features alive.
        """
        if not self.config.critic_trains_encoder:
            return self.target_moments.std.new_ones(())  # nothing to drown it
        return self.target_moments.std.square().clamp(min=1).squeeze(0)

    def see_targets(self, target: Tensor) -> None:
        """Once the step has been taken: targets that are not finite must not get here."""
        self.target_moments.update(target.unsqueeze(1))

    def noise(self, like: Tensor) -> Tensor:
        """Standard normal, from the agent's own generator: the same on every device."""
        return torch.randn(like.shape, generator=self.generator, device=self.generator.device).to(like.device)
