"""Random batches and small agents."""

from typing import Any

import torch

from manyview.agents import SAC, DrQv2, DrQv2Config, SACConfig
from manyview.agents.base import RewardFrames
from manyview.data import Batch
from manyview.mem import MEM, MEMConfig
from manyview.methods import CURL, RE3, Bonus, CURLConfig, PixelEncoder, PixelEncoderConfig, RE3Config, Representation

VIEWS, SHAPE, ACTIONS = ("side", "back"), (3, 20, 20), 2


def batch(count: int = 16, *, seed: int = 0) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    pixels = [torch.randint(256, (count, len(VIEWS), *SHAPE), generator=rng, dtype=torch.uint8) for _ in range(2)]
    mask = torch.ones(count, len(VIEWS), dtype=torch.bool)
    return Batch(
        views=pixels[0],
        mask=mask,
        action=torch.rand(count, ACTIONS, generator=rng) * 2 - 1,
        reward_ext=torch.rand(count, generator=rng),
        discount=torch.full((count,), 0.99),
        next_views=pixels[1],
        next_mask=mask.clone(),
        indices=torch.arange(count),
        next_indices=torch.arange(count) + 1,
    )


def agent(
    kind: str,
    method: str,
    *,
    reward_frames: RewardFrames = "clean",
    shift_pixels: int = 1,
    critic_trains_encoder: bool = True,
    seed: int = 0,
) -> DrQv2 | SAC:
    torch.manual_seed(seed)
    mem = MEM(VIEWS, SHAPE, MEMConfig(trunk="tiny", latent_dim=8))
    plain = PixelEncoder(len(VIEWS), SHAPE, PixelEncoderConfig(trunk="tiny", latent_dim=8))
    compositions: dict[str, tuple[Representation, Bonus | None]] = {
        "mem": (mem, mem),
        "none": (plain, None),
        "re3": (plain, RE3(SHAPE, RE3Config(trunk="tiny"))),
        "curl": (CURL(len(VIEWS), SHAPE, CURLConfig(trunk="tiny", latent_dim=8, shift_pixels=1)), None),
    }
    representation, intrinsic = compositions[method]
    beta = (lambda _: 0.05) if intrinsic is not None else (lambda _: 0.0)
    shared: dict[str, Any] = {
        "hidden": 32,
        "shift_pixels": shift_pixels,
        "reward_frames": reward_frames,
        "critic_trains_encoder": critic_trains_encoder,
    }
    if kind == "drqv2":
        return DrQv2(representation, ACTIONS, DrQv2Config(**shared), bonus=intrinsic, beta=beta, seed=seed)
    return SAC(representation, ACTIONS, SACConfig(**shared), bonus=intrinsic, beta=beta, seed=seed)
