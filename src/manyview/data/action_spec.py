"""Action space of an agent, as buffers, bonuses and policies need it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class ActionSpec:
    """Action space: one of `size` discrete actions, or a vector of `size` numbers in [-1, 1]."""

    size: int
    discrete: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.discrete else (self.size,)

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64 if self.discrete else torch.float32

    def to_vector(self, actions: Tensor) -> Tensor:
        """Return actions as vectors [..., size]: discrete ones one-hot, continuous ones clipped as `to_env` does."""
        return F.one_hot(actions, self.size).float() if self.discrete else actions.clamp(-1, 1)

    def to_env(self, actions: Tensor) -> NDArray[Any]:
        """Convert actions [B, ...] to a numpy array; continuous ones are clipped to [-1, 1]."""
        array: NDArray[Any] = actions.cpu().numpy()
        return array if self.discrete else array.astype(np.float32).clip(-1, 1)
