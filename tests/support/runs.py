"""Configs of short runs on toy tasks."""

from typing import Any

import gymnasium as gym

from manyview.config.overrides import apply_overrides, merge_overrides
from manyview.config.presets import apply_sections
from manyview.training import RunConfig, load_preset

SHORT_SETTINGS: dict[str, Any] = {
    "schedule": {"frames": 60, "random_steps": 20, "seed_frames": 30},
    "replay": {"capacity": 200, "batch_size": 8},
    "evaluation": {"every_frames": 30, "episodes": 2, "video": False},
    "logging": {"every_steps": 5, "checkpoint_every_frames": 30, "tensorboard": False},
    "agent": {"all": {"hidden": 16}},
    "representation": {"all": {"latent_dim": 4}},
    "bonus": {
        "all": {"latent_dim": 4},
        "mem": {"encoder": {"latent_dim": 4}},
        "apt": {"k": 3},
        "vcse": {"k": 3},
    },
}
SHORT_ROLLOUT_SETTINGS: dict[str, Any] = {
    "schedule": {"frames": 120},
    "rollout": {"envs": 4, "steps": 5},
    "agent": {"batch_size": 8, "epochs": 2},
}


def make_short_rollout_config(
    method: str = "ppo+mem", *, task: str = "toy/hidden_goal", seed: int = 1, **changes: Any
) -> RunConfig:
    """Return a run config of six rollouts of twenty steps, each with six updates."""
    return make_short_config(method, task=task, seed=seed, **merge_overrides(SHORT_ROLLOUT_SETTINGS, changes))


def make_short_config(
    method: str = "drqv2+mem", *, task: str = "toy/hidden_goal_continuous", seed: int = 1, **changes: Any
) -> RunConfig:
    """Return a run config of 60 frames with small networks."""
    config = apply_sections(load_preset("minute", task=task, method=method, seed=seed), SHORT_SETTINGS)
    return apply_overrides(config, changes)


class SeedRecorder(gym.Wrapper[Any, Any, Any, Any]):
    """Environment wrapper that records the seed of every reset."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.reset_seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.reset_seeds.append(seed)
        return super().reset(seed=seed, options=options)
