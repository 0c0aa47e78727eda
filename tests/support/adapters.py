"""Observations for the adapters, and the library's own bonus for the same states."""

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

VIEWS, IMAGE = ("column", "row"), (1, 20, 20)
TOLERANCE = 1e-6
"""The library and the adapters agree to this."""

BONUSES: dict[str, dict[str, Any]] = {
    "marginal": {},
    "joint": {"entropy": "joint"},
    "k=5": {"k": 5},
    "bank": {"bank": 64},
    "relative": {"distance_scale": "relative"},
    "std": {"reward_scale": "std"},
    "centered": {"reward_scale": "centered", "entropy": "joint"},
}


def small_config(**changes: Any) -> MEMConfig:
    return MEMConfig(trunk="tiny", latent_dim=8, **changes)


def make_images(*shape: int, seed: int = 0) -> dict[str, NDArray[np.uint8]]:
    """Random images [*shape, C, H, W] by view."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(256, size=(*shape, *IMAGE), dtype=np.uint8) for name in VIEWS}


def stack_images(images: dict[str, NDArray[np.uint8]], names: Sequence[str] = VIEWS) -> Tensor:
    """Images [..., C, H, W] by view as [..., V, C, H, W]."""
    return torch.stack([torch.as_tensor(images[name]) for name in names], dim=-4)


def make_library_bonus(mem: MEM, **changes: Any) -> MEMBonus:
    """The library's bonus on the encoder of `mem`, with scales and a bank of its own."""
    return MEMBonus(mem, MEMBonusConfig(**changes))


def reward_batch(bonus: MEMBonus, views: Tensor, mask: Tensor, indices: Tensor) -> Tensor:
    """r̂ [B] as the library's agents compute it for a replay batch."""
    rows = len(views)
    batch = Batch(
        views=views,
        mask=mask,
        action=torch.zeros(rows, 1),
        reward_ext=torch.zeros(rows),
        discount=torch.ones(rows),
        next_views=views,
        next_mask=mask,
        indices=indices,
        next_indices=indices + 1,
    )
    with torch.no_grad():
        return bonus.compute(batch, bonus.encode(views, mask), torch.zeros(rows))


def make_rollout(views: Tensor, mask: Tensor) -> RolloutBuffer:
    """The library's rollout of observations [T + 1, E, V, C, H, W], without rewards."""
    steps, envs, num_views = len(views) - 1, *views.shape[1:3]
    rollout = RolloutBuffer(
        num_steps=steps,
        num_envs=envs,
        image_shape=IMAGE,
        num_cameras=num_views,
        action_shape=(),
        action_dtype=torch.int64,
        derived_views=DerivedViews(seed=0),
        device=torch.device("cpu"),
    )
    rollout.frames.copy_(views)
    rollout.mask.copy_(mask)
    return rollout
