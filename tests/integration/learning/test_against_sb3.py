"""PPO without a method learns as Stable-Baselines3's does: the same task, network and settings, five seeds of each."""

from statistics import mean, stdev
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from manyview.config.overrides import apply_overrides, merge_overrides
from manyview.envs import make
from manyview.methods import PixelEncoder, PixelEncoderConfig
from manyview.training import OnPolicyTrainer, load_preset

TASK, SEEDS = "toy/identity", range(1, 6)
ENVS, STEPS, BATCH, EPOCHS, HIDDEN, LATENT = 16, 32, 128, 4, 64, 16
LR, DISCOUNT, DECAY, CLIP, ENTROPY, MOST_GRAD = 1e-3, 0.9, 0.95, 0.2, 0.01, 0.5
ROLLOUTS = 8
LOOKED_AT = (3, 7)
"""Rollouts whose mean reward is compared: while it is learned, and towards the end."""


class Stacked(gym.ObservationWrapper[Any, Any, Any]):
    """Both views in one array, as Stable-Baselines3 takes it."""

    def __init__(self) -> None:
        super().__init__(make(TASK))
        self.observation_space = spaces.Box(0, 255, (2, 1, 20, 20), np.uint8)

    def observation(self, observation: Any) -> Any:
        return np.stack([observation[name].transpose(2, 0, 1) for name in ("upright", "lying")])


def sb3_rewards(seed: int) -> list[float]:
    """Mean reward a step of each rollout."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class PlainExtractor(BaseFeaturesExtractor):
        def __init__(self, space: spaces.Box) -> None:
            super().__init__(space, 2 * LATENT)
            self.plain = PixelEncoder(2, (1, 20, 20), PixelEncoderConfig(latent_dim=LATENT, trunk="tiny"))

        def forward(self, observations: Tensor) -> Tensor:
            return self.plain.encode(observations.to(torch.uint8)).state

    class Rewards(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.steps: list[float] = []

        def _on_step(self) -> bool:
            # Not those of its buffer: where the clock ran out they have a value in them.
            self.steps.append(float(self.locals["rewards"].mean()))
            return True

    seen = Rewards()
    model = PPO(
        "MlpPolicy",
        make_vec_env(Stacked, ENVS, seed=seed),
        n_steps=STEPS,
        batch_size=BATCH,
        n_epochs=EPOCHS,
        learning_rate=LR,
        gamma=DISCOUNT,
        gae_lambda=DECAY,
        clip_range=CLIP,
        clip_range_vf=CLIP,
        ent_coef=ENTROPY,
        vf_coef=0.25,  # ours has half of the squared error
        max_grad_norm=MOST_GRAD,
        policy_kwargs={
            "features_extractor_class": PlainExtractor,
            "net_arch": {"pi": [HIDDEN, HIDDEN], "vf": [HIDDEN, HIDDEN]},
            "activation_fn": torch.nn.ReLU,
        },
        seed=seed,
        device="cpu",
    )
    model.learn(ROLLOUTS * ENVS * STEPS, callback=seen)
    return [mean(seen.steps[begin : begin + STEPS]) for begin in range(0, ROLLOUTS * STEPS, STEPS)]


def our_rewards(seed: int) -> list[float]:
    settings = {
        "compute": {"device": "cpu", "threads": 1},
        "rollout": {"envs": ENVS, "steps": STEPS},
        "representation": {"latent_dim": LATENT, "trunk": "tiny"},
        "agent": {
            "hidden": HIDDEN,
            "lr": LR,
            "discount": DISCOUNT,
            "gae_lambda": DECAY,
            "clip_coef": CLIP,
            "entropy_coef": ENTROPY,
            "value_coef": 0.5,
            "max_grad_norm": MOST_GRAD,
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "normalize_rewards": False,
        },
    }
    config = load_preset("minute", task=TASK, method="ppo+none", seed=seed)
    trainer = OnPolicyTrainer(apply_overrides(config, merge_overrides({}, settings)))
    rewards: list[float] = []
    while trainer.counters.rollouts < ROLLOUTS:
        trainer.advance()
        if trainer.rollout.is_full and len(rewards) == trainer.counters.rollouts:
            rewards.append(float(trainer.rollout.reward_ext.mean()))
    trainer.close()
    return rewards


@pytest.mark.slow
@pytest.mark.long
def test_ppo_learns_as_stable_baselines_does() -> None:
    torch.set_num_threads(1)
    ours, theirs = ([rewards(seed) for seed in SEEDS] for rewards in (our_rewards, sb3_rewards))
    for rollout in LOOKED_AT:
        here, there = ([curve[rollout] for curve in curves] for curves in (ours, theirs))
        error = (stdev(here) ** 2 / len(here) + stdev(there) ** 2 / len(there)) ** 0.5
        print(f"rollout {rollout}: ours {mean(here):.3f}, Stable-Baselines3 {mean(there):.3f}, error {error:.3f}")
        assert abs(mean(here) - mean(there)) <= 2.3 * error, (here, there)  # 95 %, of eight degrees of freedom
    assert mean(curve[-1] for curve in ours) > 0.8, "and both learn it"
