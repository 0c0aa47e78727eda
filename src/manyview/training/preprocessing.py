"""Convert observations to the tensors that agents take."""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from manyview.data.state_vectors import concatenate_vectors
from manyview.envs import MASK, View
from manyview.envs.views import Observation
from manyview.training.factory import Shapes


def to_tensors(observation: Observation, views: Sequence[View], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a batch of one: views [1, V, C, H, W] uint8 and mask [1, V]."""
    # Stacked frames are stored channels first.
    images = np.stack([observation[view.name].transpose(2, 0, 1) for view in views])
    mask = np.asarray(observation[MASK], np.bool_)
    return torch.from_numpy(images).unsqueeze(0).to(device), torch.from_numpy(mask).unsqueeze(0).to(device)


def mask_views(observation: Observation, views: Sequence[View], absent: Collection[str]) -> Observation:
    """Return the observation without the `absent` views: black images, masked."""
    images = {view.name: np.zeros_like(observation[view.name]) for view in views if view.name in absent}
    is_kept = np.array([view.name not in absent for view in views])
    return {**observation, **images, MASK: observation[MASK] * is_kept}


def prepare_observation(
    observation: Observation, shapes: Shapes, device: torch.device, *, episode: int
) -> tuple[Tensor, ...]:
    """Return a batch of one, as `Agent.act` takes it: views with derived ones, mask, state vectors if any.

    Derived views use `episode` as the number of the environment.
    """
    views, mask = to_tensors(observation, shapes.cameras, device)
    env_ids = torch.tensor([episode], device=device)
    vectors = to_vectors(observation, shapes, device)
    return (
        *shapes.derived_views(views, mask, draw_ids=torch.zeros_like(env_ids), env_ids=env_ids),
        *(() if vectors is None else (vectors.unsqueeze(0),)),
    )


def to_vectors(observation: Observation, shapes: Shapes, device: torch.device) -> Tensor | None:
    """Return the state vectors [D] of an observation, or [E, D] of E environments; None without any."""
    if not shapes.state_vectors:
        return None
    vectors = concatenate_vectors(observation, shapes.state_vectors, state_stack=shapes.state_stack)
    return torch.from_numpy(vectors).to(device)


def to_batched_tensors(observation: Observation, views: Sequence[View], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the observations of E environments: views [E, V, C, H, W] uint8 and mask [E, V]."""
    # EnvPool stores frames channels first, so a single view is not copied on a CPU.
    images = [torch.from_numpy(observation[view.name].transpose(0, 3, 1, 2)).to(device) for view in views]
    mask = torch.from_numpy(np.asarray(observation[MASK], np.bool_)).to(device)
    return images[0].unsqueeze(1) if len(images) == 1 else torch.stack(images, 1), mask
