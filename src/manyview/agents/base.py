"""What every agent has: a representation, perhaps an intrinsic reward, and a state that can be kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from manyview.data.augmentation import ShiftMode, random_shift
from manyview.data.batch import Batch
from manyview.methods.interfaces import Bonus, EpisodicBonus, Representation
from manyview.nn.module_state import get_module_state, load_module_state
from manyview.nn.normalization import RunningMoments
from manyview.utils.validation import MAX_UNITS, check_at_least, check_at_most, check_choices


def zero_beta(_: int) -> float:
    return 0.0


class Agent(nn.Module):
    """Acts on the representation's state, and is paid β times the intrinsic reward for exploring."""

    def __init__(
        self,
        representation: Representation,
        *,
        bonus: Bonus | EpisodicBonus | None = None,
        beta: Callable[[int], float] = zero_beta,
    ) -> None:
        super().__init__()
        self.representation, self.bonus, self.beta = representation, bonus, beta

    def act(self, views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Tensor:
        """Actions [B, ...] for `views` [B, V, C, H, W]; without exploring, as it is evaluated."""
        raise NotImplementedError

    def get_state(self) -> dict[str, Any]:
        """All there is to keep, as a tree of tensors."""
        return get_module_state(self)

    def load_state(self, state: dict[str, Any]) -> None:
        load_module_state(self, state)

    def rollback(self, state: dict[str, Any]) -> None:
        """To what was learned then, in the midst of a run."""
        self.load_state(state)

    @property
    def has_shared_encoder(self) -> bool:
        """Whether the bonus is of the representation, as MEM's is; others have an encoder of their own."""
        return id(self.bonus) == id(self.representation)


RewardFrames = Literal["clean", "shifted"]


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    hidden: int = 1024
    """Width of actor and critics."""
    shift_pixels: int = 4
    """Of the augmentation; 0 turns it off."""
    reward_frames: RewardFrames = "shifted"
    """What MEM's r̂ sees: the critic's `shifted` frames, then with one shift for each view of a batch, so that equal
    states still look alike; or `clean` ones, at the price of encoding s_t once more."""
    critic_trains_encoder: bool = True
    """Whether the critic's loss trains the encoder too. With `false` only the representation's own loss does, as line
    15 of the paper's Algorithm 1 reads; what stands in for an absent view is then never trained."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "hidden")
        check_at_most(self, MAX_UNITS, "hidden")
        check_at_least(self, 0, "shift_pixels")


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
