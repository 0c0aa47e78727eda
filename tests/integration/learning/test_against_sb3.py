"""PPO without a bonus learns like that of Stable-Baselines3 with the same task, network and settings."""

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
NUM_ENVS, NUM_STEPS, BATCH_SIZE, EPOCHS, HIDDEN, LATENT_DIM = 16, 32, 128, 4, 64, 16
LR, DISCOUNT, GAE_LAMBDA, CLIP_COEF, ENTROPY_COEF, MAX_GRAD_NORM = 1e-3, 0.9, 0.95, 0.2, 0.01, 0.5
NUM_ROLLOUTS = 8
COMPARED_ROLLOUTS = (3, 7)
"""Rollouts whose mean reward is compared: during learning, and at its end."""


class StackedViews(gym.ObservationWrapper[Any, Any, Any]):
    """Observation wrapper that stacks both views in one array."""

    def __init__(self) -> None:
        super().__init__(make(TASK))
        self.observation_space = spaces.Box(0, 255, (2, 1, 20, 20), np.uint8)

    def observation(self, observation: Any) -> Any:
        return np.stack([observation[name].transpose(2, 0, 1) for name in ("upright", "lying")])


def train_sb3(seed: int) -> list[float]:
    """Train PPO of Stable-Baselines3 and return the mean reward per step of each rollout."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class PixelExtractor(BaseFeaturesExtractor):
        def __init__(self, space: spaces.Box) -> None:
            super().__init__(space, 2 * LATENT_DIM)
            self.pixel_encoder = PixelEncoder(2, (1, 20, 20), PixelEncoderConfig(latent_dim=LATENT_DIM, trunk="tiny"))

        def forward(self, observations: Tensor) -> Tensor:
            return self.pixel_encoder.encode(observations.to(torch.uint8)).state

    class RewardRecorder(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.step_rewards: list[float] = []

        def _on_step(self) -> bool:
            # Not the rewards of its buffer, which include a value estimate at the time limit.
            self.step_rewards.append(float(self.locals["rewards"].mean()))
            return True

    recorder = RewardRecorder()
    model = PPO(
        "MlpPolicy",
        make_vec_env(StackedViews, NUM_ENVS, seed=seed),
        n_steps=NUM_STEPS,
        batch_size=BATCH_SIZE,
        n_epochs=EPOCHS,
        learning_rate=LR,
        gamma=DISCOUNT,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP_COEF,
        clip_range_vf=CLIP_COEF,
        ent_coef=ENTROPY_COEF,
        vf_coef=0.25,  # the loss of manyview has half of the squared error
        max_grad_norm=MAX_GRAD_NORM,
        policy_kwargs={
            "features_extractor_class": PixelExtractor,
            "net_arch": {"pi": [HIDDEN, HIDDEN], "vf": [HIDDEN, HIDDEN]},
            "activation_fn": torch.nn.ReLU,
        },
        seed=seed,
        device="cpu",
    )
    model.learn(NUM_ROLLOUTS * NUM_ENVS * NUM_STEPS, callback=recorder)
    return [
        mean(recorder.step_rewards[start : start + NUM_STEPS])
        for start in range(0, NUM_ROLLOUTS * NUM_STEPS, NUM_STEPS)
    ]


def train_manyview(seed: int) -> list[float]:
    """Train PPO of manyview and return the mean reward per step of each rollout."""
    settings = {
        "compute": {"device": "cpu", "threads": 1},
        "rollout": {"envs": NUM_ENVS, "steps": NUM_STEPS},
        "representation": {"latent_dim": LATENT_DIM, "trunk": "tiny"},
        "agent": {
            "hidden": HIDDEN,
            "lr": LR,
            "discount": DISCOUNT,
            "gae_lambda": GAE_LAMBDA,
            "clip_coef": CLIP_COEF,
            "entropy_coef": ENTROPY_COEF,
            "value_coef": 0.5,
            "max_grad_norm": MAX_GRAD_NORM,
            "epochs": EPOCHS,
            "batch_size": BATCH_SIZE,
            "normalize_rewards": False,
        },
    }
    config = load_preset("minute", task=TASK, method="ppo+none", seed=seed)
    trainer = OnPolicyTrainer(apply_overrides(config, merge_overrides({}, settings)))
    rewards: list[float] = []
    while trainer.counters.rollouts < NUM_ROLLOUTS:
        trainer.advance()
        if trainer.rollout.is_full and len(rewards) == trainer.counters.rollouts:
            rewards.append(float(trainer.rollout.reward_ext.mean()))
    trainer.close()
    return rewards


@pytest.mark.slow
@pytest.mark.long
def test_ppo_learns_like_stable_baselines() -> None:
    torch.set_num_threads(1)
    manyview_curves, sb3_curves = ([train(seed) for seed in SEEDS] for train in (train_manyview, train_sb3))
    for rollout in COMPARED_ROLLOUTS:
        rewards, sb3_rewards = ([curve[rollout] for curve in curves] for curves in (manyview_curves, sb3_curves))
        error = (stdev(rewards) ** 2 / len(rewards) + stdev(sb3_rewards) ** 2 / len(sb3_rewards)) ** 0.5
        print(
            f"rollout {rollout}: ours {mean(rewards):.3f}, Stable-Baselines3 {mean(sb3_rewards):.3f}, error {error:.3f}"
        )
        assert abs(mean(rewards) - mean(sb3_rewards)) <= 2.3 * error, (
            rewards,
            sb3_rewards,
        )  # 95 %, 8 degrees of freedom
    assert mean(curve[-1] for curve in manyview_curves) > 0.8, "and both learn it"
