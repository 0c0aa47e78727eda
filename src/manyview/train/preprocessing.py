"""Observations as agents take them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from manyview.envs import MASK, View
from manyview.envs.views import Observation
from manyview.train.factory import Shapes


def to_tensors(observation: Observation, views: Sequence[View], device: torch.device) -> tuple[Tensor, Tensor]:
    """A batch of one: views [1, V, C, H, W] uint8 and mask [1, V]."""
    # Channels first is how stacked frames lie in memory.
    images = np.stack([observation[view.name].transpose(2, 0, 1) for view in views])
    mask = np.asarray(observation[MASK], np.bool_)
    return torch.from_numpy(images).unsqueeze(0).to(device), torch.from_numpy(mask).unsqueeze(0).to(device)


def prepare_observation(
    observation: Observation, shapes: Shapes, device: torch.device, *, episode: int
) -> tuple[Tensor, Tensor]:
    """A batch of one with all that the agent sees, in the place of the environment with the episode's number."""
    views, mask = to_tensors(observation, shapes.cameras, device)
    place = torch.tensor([episode], device=device)
    return shapes.derived_views(views, mask, draw_ids=torch.zeros_like(place), env_ids=place)


def to_batched_tensors(observation: Observation, views: Sequence[View], device: torch.device) -> tuple[Tensor, Tensor]:
    """Of E environments: views [E, V, C, H, W] uint8 and mask [E, V]."""
    # Channels first is how EnvPool's frames lie in memory: of a single view nothing is copied on a CPU.
    images = [torch.from_numpy(observation[view.name].transpose(0, 3, 1, 2)).to(device) for view in views]
    mask = torch.from_numpy(np.asarray(observation[MASK], np.bool_)).to(device)
    return images[0].unsqueeze(1) if len(images) == 1 else torch.stack(images, 1), mask
