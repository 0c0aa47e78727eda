"""Small models and batches that several tests use."""

import dataclasses
from typing import Any

import torch

from manyview.mem import MEM, Features, MEMConfig

NAMES = ("front", "side", "top", "wrist")
IMAGE = (3, 24, 24)


def small_config(**overrides: Any) -> MEMConfig:
    return dataclasses.replace(MEMConfig(trunk="small", latent_dim=16, bank=0), **overrides)


def small_mem(views: tuple[str, ...] = NAMES, *, seed: int = 0, **overrides: Any) -> MEM:
    torch.manual_seed(seed)
    return MEM(views, IMAGE, small_config(**overrides))


def images(batch: int, views: int = len(NAMES), *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (batch, views, *IMAGE), dtype=torch.uint8, generator=generator)


def random_mask(batch: int, views: int = len(NAMES), *, seed: int = 0) -> torch.Tensor:
    """Every view present with probability 0.6, at least one in each row."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, views, generator=generator) < 0.6
    mask[torch.arange(batch), torch.randint(views, (batch,), generator=generator)] = True
    return mask


def random_features(batch: int, views: int, dim: int, *, seed: int = 0, mask: torch.Tensor | None = None) -> Features:
    generator = torch.Generator().manual_seed(seed)
    if mask is None:
        mask = torch.ones(batch, views, dtype=torch.bool)
    shared, specific = (torch.randn(batch, views, dim, generator=generator) * mask[..., None] for _ in range(2))
    mean = shared.sum(1) / mask.sum(1, keepdim=True)
    return Features(shared, specific, mean, torch.cat([specific.flatten(1), mean], 1), mask)
