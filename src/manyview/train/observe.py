"""Observations as agents take them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from manyview.envs import MASK, View
from manyview.envs.views import Observation


def to_tensors(observation: Observation, views: Sequence[View], device: torch.device) -> tuple[Tensor, Tensor]:
    """A batch of one: views [1, V, C, H, W] uint8 and mask [1, V]."""
    # Channels first is how stacked frames lie in memory.
    pictures = np.stack([observation[view.name].transpose(2, 0, 1) for view in views])
    mask = np.asarray(observation[MASK], np.bool_)
    return torch.from_numpy(pictures).unsqueeze(0).to(device), torch.from_numpy(mask).unsqueeze(0).to(device)
