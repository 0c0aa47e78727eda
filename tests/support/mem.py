"""Small MEM models and random inputs."""

import dataclasses
from typing import Any

import torch

from manyview.mem import MEM, Features, MEMConfig

VIEW_NAMES = ("front", "side", "top", "wrist")
IMAGE_SHAPE = (3, 24, 24)


def make_mem_config(**overrides: Any) -> MEMConfig:
    """Return settings of a small model, with overrides."""
    return dataclasses.replace(MEMConfig(trunk="small", latent_dim=16, bank=0), **overrides)


def make_mem(view_names: tuple[str, ...] = VIEW_NAMES, *, seed: int = 0, **overrides: Any) -> MEM:
    """Return a small model with random weights."""
    torch.manual_seed(seed)
    return MEM(view_names, IMAGE_SHAPE, make_mem_config(**overrides))


def make_images(batch_size: int, num_views: int = len(VIEW_NAMES), *, seed: int = 0) -> torch.Tensor:
    """Return random images [B, V, C, H, W]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (batch_size, num_views, *IMAGE_SHAPE), dtype=torch.uint8, generator=generator)


def make_random_mask(batch_size: int, num_views: int = len(VIEW_NAMES), *, seed: int = 0) -> torch.Tensor:
    """Return a view mask [B, V] with at least one view per row.

    The others are present with probability 0.6.
    """
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch_size, num_views, generator=generator) < 0.6
    mask[torch.arange(batch_size), torch.randint(num_views, (batch_size,), generator=generator)] = True
    return mask


def make_random_features(
    batch_size: int, num_views: int, dim: int, *, seed: int = 0, mask: torch.Tensor | None = None
) -> Features:
    """Return random features of all views, or of the views in `mask`."""
    generator = torch.Generator().manual_seed(seed)
    if mask is None:
        mask = torch.ones(batch_size, num_views, dtype=torch.bool)
    shared, specific = (
        torch.randn(batch_size, num_views, dim, generator=generator) * mask[..., None] for _ in range(2)
    )
    mean = shared.sum(1) / mask.sum(1, keepdim=True)
    return Features(shared, specific, mean, torch.cat([specific.flatten(1), mean], 1), mask)
