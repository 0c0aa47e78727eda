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

VIEW_NAMES, IMAGE_SHAPE, ACTION_SIZE = ("side", "back"), (3, 20, 20), 2


def make_batch(batch_size: int = 16, *, seed: int = 0) -> Batch:
    """Return a random batch of transitions."""
    rng = torch.Generator().manual_seed(seed)
    images = [
        torch.randint(256, (batch_size, len(VIEW_NAMES), *IMAGE_SHAPE), generator=rng, dtype=torch.uint8)
        for _ in range(2)
    ]
    mask = torch.ones(batch_size, len(VIEW_NAMES), dtype=torch.bool)
    return Batch(
        views=images[0],
        mask=mask,
        action=torch.rand(batch_size, ACTION_SIZE, generator=rng) * 2 - 1,
        reward_ext=torch.rand(batch_size, generator=rng),
        discount=torch.full((batch_size,), 0.99),
        next_views=images[1],
        next_mask=mask.clone(),
        indices=torch.arange(batch_size),
        next_indices=torch.arange(batch_size) + 1,
    )


def make_agent(
    name: str,
    method: str,
    *,
    reward_frames: RewardFrames = "clean",
    shift_pixels: int = 1,
    bonus_changes: dict[str, Any] | None = None,
    seed: int = 0,
    **changes: Any,
) -> DrQv2 | SAC:
    """Return a small agent of a method such as `mem` or `pixel+mem`.

    `changes` are settings of the agent, `bonus_changes` of the bonus.
    """
    torch.manual_seed(seed)
    _, representation_name, bonus_name = parse_method(f"{name}+{method}")
    augmentation = ImageAugmentation("shift", shift_pixels)
    context = BuildContext(
        view_names=VIEW_NAMES,
        image_shape=IMAGE_SHAPE,
        frame_stack=1,
        actions=ActionSpec(ACTION_SIZE, discrete=False),
        seed=seed,
        augmentation=augmentation,
    )
    representation_part = REPRESENTATIONS[representation_name]
    sizes: dict[str, Any] = {"trunk": "tiny", "latent_dim": 8}
    representation_config = representation_part.config(
        **sizes, **({"shift_pixels": 1} if representation_name == "curl" else {})
    )
    representation = representation_part.build(representation_config, context)
    bonus_config = BONUSES[bonus_name].config()
    if isinstance(bonus_config, MEMBonusConfig):
        bonus_config = replace(bonus_config, reward_frames=reward_frames, **(bonus_changes or {}))
    elif isinstance(bonus_config, BonusConfig):
        # A random batch has no neighbor distances from a sampler.
        search_settings = {"search": "batch"} if isinstance(bonus_config, RE3Config) else {}
        bonus_config = replace(bonus_config, **{"trunk": "tiny", **search_settings, **(bonus_changes or {})})
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
    if name == "drqv2":
        return DrQv2(representation, ACTION_SIZE, DrQv2Config(hidden=32, **changes), **options)
    return SAC(representation, ACTION_SIZE, SACConfig(hidden=32, **changes), **options)
