"""What off-policy agents share: the seam to a representation and an intrinsic reward, and their own randomness."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from manyview.agents.options import OffPolicyConfig
from manyview.agents.state import load_state_into, state_of
from manyview.data.batch import Batch
from manyview.data.shift import ShiftDraw, random_shift
from manyview.mem.running import RunningMoments
from manyview.methods.protocols import Intrinsic, Representation


def no_bonus(_: int) -> float:
    return 0.0


class OffPolicyAgent(nn.Module):
    """Acts on the representation's state, and learns from batches of a replay."""

    def __init__(
        self,
        representation: Representation,
        config: OffPolicyConfig,
        *,
        intrinsic: Intrinsic | None = None,
        beta: Callable[[int], float] = no_bonus,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.config = config
        self.representation, self.intrinsic, self.beta = representation, intrinsic, beta
        self.generator = torch.Generator().manual_seed(seed)
        self.target_moments = RunningMoments(1)

    def act(self, views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Tensor:
        """Actions [B, A] for `views` [B, V, C, H, W]; without exploring, the best known."""
        raise NotImplementedError

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """One update at agent step `step`; its metrics."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """All there is to keep, as a tree of tensors."""
        return state_of(self)

    def load_state(self, state: dict[str, Any]) -> None:
        load_state_into(self, state)

    @property
    def pays_what_it_encodes(self) -> bool:
        """Whether the bonus is of the representation, as MEM's is; others have an encoder of their own."""
        return id(self.intrinsic) == id(self.representation)

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

    @property
    def critic_scale(self) -> Tensor:
        """The running variance of the critic's targets, at least 1: what its loss is measured in.

        PAPER: D30. Where rewards are large the critic would otherwise drown the representation's loss, and with it what
        keeps the features alive. Adam makes nothing of the factor where the critic learns alone.
        """
        return self.target_moments.std.square().clamp(min=1).squeeze(0)

    def see_targets(self, target: Tensor) -> None:
        """Once the step has been taken: targets that are not finite must not get here."""
        self.target_moments.update(target.unsqueeze(1))

    def noise(self, like: Tensor) -> Tensor:
        """Standard normal, from the agent's own generator: the same on every device."""
        return torch.randn(like.shape, generator=self.generator).to(like.device)
