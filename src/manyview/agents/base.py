"""Base classes of the agents.

`Agent` holds a representation, an optional bonus with its weight β, and the checkpoint state. `OffPolicyAgent` adds
what DrQ-v2 and SAC share: image augmentation, the bonus of a replay batch and statistics of the critic's targets.
"""

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

RewardFrames = Literal["clean", "shifted"]


def zero_beta(_: int) -> float:
    """Return 0, the weight β of an agent without a bonus."""
    return 0.0


class Agent(nn.Module):
    """Policy on the representation's state, trained on ř + β r̂.

    `bonus` computes the intrinsic reward r̂; `beta` maps elapsed units to its weight β.
    """

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
        """Return actions [B, ...] for `views` [B, V, C, H, W] uint8 and `mask` [B, V].

        `step` is the agent step; `explore=False` gives the actions of an evaluation.
        """
        raise NotImplementedError

    def get_state(self) -> dict[str, Any]:
        """Return the complete state as a tree of tensors: networks, optimizers, random generators."""
        return get_module_state(self)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `get_state`. Raises ValueError if it does not fit this agent."""
        load_module_state(self, state)

    def rollback(self, state: dict[str, Any]) -> None:
        """Restore an earlier `state` during a run, while the environments continue their episodes."""
        self.load_state(state)

    @property
    def has_shared_encoder(self) -> bool:
        """True if the bonus is computed on the representation's features, as MEM's is."""
        return id(self.bonus) == id(self.representation)


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Settings that DrQ-v2 and SAC share."""

    hidden: int = 1024
    """Hidden width of actor and critics."""
    shift_pixels: int = 4
    """Maximum random shift of the image augmentation, in pixels; 0 turns it off."""
    reward_frames: RewardFrames = "shifted"
    """Frames of MEM's r̂. `shifted`: those of the critic, with one shift per view and batch so that equal states stay
    equal. `clean`: without augmentation, which encodes s_t a second time."""
    critic_trains_encoder: bool = True
    """Train the encoder by the critic's loss too. `false` leaves only the representation's loss, as in line 15 of the
    paper's Algorithm 1; the token of an absent view is then never trained."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "hidden")
        check_at_most(self, MAX_UNITS, "hidden")
        check_at_least(self, 0, "shift_pixels")


class OffPolicyAgent(Agent):
    """Agent that learns from batches of a replay buffer."""

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
        """Take one gradient update at agent step `step` and return its metrics.

        Raises `NonFiniteError` instead of taking a step along a gradient that is not finite.
        """
        raise NotImplementedError

    @property
    def rewards_shifted_frames(self) -> bool:
        """True if r̂ is computed on the critic's augmented frames."""
        return self.has_shared_encoder and self.config.reward_frames == "shifted"

    @property
    def shift_mode(self) -> ShiftMode:
        """Mode of `random_shift` for this agent's batches."""
        # PAPER: D13. One shift per view where r̂ is computed on it: a shift per image makes equal states differ.
        return "common" if self.rewards_shifted_frames else "each"

    def augment(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the randomly shifted images of s_t and s_{t+n}, [B, V, C, H, W] uint8 each."""
        views, next_views = (
            random_shift(pixels, self.config.shift_pixels, self.generator, self.shift_mode)
            for pixels in (batch.views, batch.next_views)
        )
        return views, next_views

    def compute_bonus(self, batch: Batch, augmented_views: Tensor, features: Any) -> Tensor:
        """Return r̂ [B] of s_t (MEM: Eq. 9), zeros without a bonus.

        `features` are the representation's of `augmented_views`.
        """
        if self.bonus is None:
            return torch.zeros_like(batch.reward_ext)
        if self.rewards_shifted_frames or (self.has_shared_encoder and augmented_views is batch.views):
            return self.bonus.compute_reward(features, indices=batch.indices)
        # PAPER: D13. Clean frames. A bonus with a separate encoder always takes them, at no extra cost.
        return self.bonus.compute_reward(self.bonus.encode(batch.views, batch.mask), indices=batch.indices)

    def critic_input(self, state: Tensor) -> Tensor:
        """Return `state` for the critic's loss, detached unless the critic trains the encoder."""
        # PAPER: D18. Algorithm 1, read literally, trains the encoder by L_total alone.
        return state if self.config.critic_trains_encoder else state.detach()

    @property
    def representation_loss_scale(self) -> Tensor:
        """Weight of the representation's loss: the running variance of the targets, at least 1.

        PAPER: D30. With large rewards the critic's loss would otherwise dominate, and the features could collapse.
        """
        if not self.config.critic_trains_encoder:
            return self.target_moments.std.new_ones(())  # the critic's loss does not reach the encoder
        return self.target_moments.std.square().clamp(min=1).squeeze(0)

    def update_target_stats(self, target: Tensor) -> None:
        """Update the running statistics of the critic's targets, which must be finite.

        Call it after the optimizer step, which raises if they are not.
        """
        self.target_moments.update(target.unsqueeze(1))

    def sample_noise(self, like: Tensor) -> Tensor:
        """Return standard normal noise of the shape of `like`, drawn on the CPU: equal on every device."""
        return torch.randn(like.shape, generator=self.generator, device=self.generator.device).to(like.device)
