"""Settings that off-policy agents share."""

from dataclasses import dataclass
from typing import Literal

from manyview.utils.validation import MAX_UNITS, check_at_least, check_at_most, check_choices

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
