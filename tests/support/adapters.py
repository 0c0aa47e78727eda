"""Inputs of the framework adapters, and the library's bonus of the same inputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyview.data import Batch
from manyview.data.derived_views import DerivedViews
from manyview.data.rollout_buffer import RolloutBuffer
from manyview.mem import MEM, MEMConfig
from manyview.methods import MEMBonus, MEMBonusConfig

VIEW_NAMES, IMAGE_SHAPE = ("column", "row"), (1, 20, 20)
TOLERANCE = 1e-6
"""Absolute tolerance between bonuses of the library and of the adapters."""

BONUSES: dict[str, dict[str, Any]] = {
    "marginal": {},
    "joint": {"entropy": "joint"},
    "k=5": {"k": 5},
    "bank": {"bank": 64},
    "relative": {"distance_scale": "relative"},
    "std": {"reward_scale": "std"},
    "centered": {"reward_scale": "centered", "entropy": "joint"},
}


def make_mem_config(**changes: Any) -> MEMConfig:
    """Return settings of a small MEM model, with changes."""
    return MEMConfig(trunk="tiny", latent_dim=8, **changes)


def make_images(*shape: int, seed: int = 0) -> dict[str, NDArray[np.uint8]]:
    """Return random images [*shape, C, H, W] by view."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(256, size=(*shape, *IMAGE_SHAPE), dtype=np.uint8) for name in VIEW_NAMES}


def stack_images(images: dict[str, NDArray[np.uint8]], names: Sequence[str] = VIEW_NAMES) -> Tensor:
    """Stack images [..., C, H, W] by view to [..., V, C, H, W]."""
    return torch.stack([torch.as_tensor(images[name]) for name in names], dim=-4)


def make_library_bonus(mem: MEM, **changes: Any) -> MEMBonus:
    """Return the library's bonus on the encoder of `mem`, with a new feature bank."""
    return MEMBonus(mem, MEMBonusConfig(**changes))


def compute_bonuses(bonus: MEMBonus, views: Tensor, mask: Tensor, indices: Tensor) -> Tensor:
    """Return r̂ [B] as the library's agents compute it for a replay batch."""
    batch_size = len(views)
    batch = Batch(
        views=views,
        mask=mask,
        action=torch.zeros(batch_size, 1),
        reward_ext=torch.zeros(batch_size),
        discount=torch.ones(batch_size),
        next_views=views,
        next_mask=mask,
        indices=indices,
        next_indices=indices + 1,
    )
    with torch.no_grad():
        return bonus.compute(batch, bonus.encode(views, mask), torch.zeros(batch_size))


def make_rollout(views: Tensor, mask: Tensor) -> RolloutBuffer:
    """Return a rollout buffer with observations [T + 1, E, V, C, H, W], no rewards."""
    steps, envs, num_views = len(views) - 1, *views.shape[1:3]
    rollout = RolloutBuffer(
        num_steps=steps,
        num_envs=envs,
        image_shape=IMAGE_SHAPE,
        num_cameras=num_views,
        action_shape=(),
        action_dtype=torch.int64,
        derived_views=DerivedViews(seed=0),
        device=torch.device("cpu"),
    )
    rollout.frames.copy_(views)
    rollout.mask.copy_(mask)
    return rollout
