"""Random batches and small agents."""

from dataclasses import replace
from typing import Any

import torch

from manyview.agents import SAC, DrQv2, DrQv2Config, SACConfig
from manyview.config.method import parse_method
from manyview.data import Batch
from manyview.data.action_spec import ActionSpec
from manyview.data.batch_augmentation import ImageAugmentation
from manyview.methods import BONUSES, REPRESENTATIONS, BonusConfig, BuildContext, MEMBonusConfig, RE3Config
from manyview.methods.bonuses.mem import RewardFrames

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
    bonus_changes: dict[str, Any] | None = None,
    seed: int = 0,
    **changes: Any,
) -> DrQv2 | SAC:
    """A small agent of a method such as `mem` or `pixel+mem`; `changes` are settings of the agent."""
    torch.manual_seed(seed)
    _, representation_name, bonus_name = parse_method(f"{kind}+{method}")
    augmentation = ImageAugmentation("shift", shift_pixels)
    context = BuildContext(
        view_names=VIEWS,
        image_shape=SHAPE,
        frame_stack=1,
        actions=ActionSpec(ACTIONS, discrete=False),
        seed=seed,
        augmentation=augmentation,
    )
    part = REPRESENTATIONS[representation_name]
    sizes: dict[str, Any] = {"trunk": "tiny", "latent_dim": 8}
    representation_config = part.config(**sizes, **({"shift_pixels": 1} if representation_name == "curl" else {}))
    representation = part.build(representation_config, context)
    bonus_config = BONUSES[bonus_name].config()
    if isinstance(bonus_config, MEMBonusConfig):
        bonus_config = replace(bonus_config, reward_frames=reward_frames, **(bonus_changes or {}))
    elif isinstance(bonus_config, BonusConfig):
        # A random batch has no distances of a sampler.
        search = {"search": "batch"} if isinstance(bonus_config, RE3Config) else {}
        bonus_config = replace(bonus_config, **{"trunk": "tiny", **search, **(bonus_changes or {})})
    if isinstance(bonus_config, BonusConfig):
        bonus_config = bonus_config.fit_representation(representation_config)
    if isinstance(bonus_config, MEMBonusConfig) and bonus_config.encoder is not None:
        bonus_config = replace(bonus_config, encoder=replace(bonus_config.encoder, **sizes))
    bonus = BONUSES[bonus_name].build(bonus_config, replace(context, representation=representation))
    options: dict[str, Any] = {
        "bonus": bonus,
        "beta": None if bonus is None else (lambda _: 0.05),
        "augmentation": augmentation,
        "seed": seed,
    }
    if kind == "drqv2":
        return DrQv2(representation, ACTIONS, DrQv2Config(hidden=32, **changes), **options)
    return SAC(representation, ACTIONS, SACConfig(hidden=32, **changes), **options)
