"""SAC of Stable-Baselines3 on Deep Sea, with the settings that `experiments.composition` gives SAC."""

from typing import Any

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.env_util import make_vec_env

import manyview
from experiments.adapters.with_sb3 import Watch
from experiments.deep_sea import Attempt
from manyview.adapters.sb3 import MEMCallback, MEMExtractor, MEMReplayBuffer, MEMSACPolicy
from manyview.mem import BetaSchedule, MEMConfig

TASK, FRAMES = "toy/deep_sea_continuous", 3_000
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "buffer_size": 10_000,
    "learning_starts": 200,
    "batch_size": 64,
    "gamma": 0.99,
    "tau": 0.05,
    "target_update_interval": 2,
    "ent_coef": "auto_0.1",
}


def run(method: str, *, beta0: float, seed: int) -> Attempt:
    torch.set_num_threads(1)
    policy: dict[str, Any] = {
        "features_extractor_class": MEMExtractor,
        "features_extractor_kwargs": {
            "config": MEMConfig(trunk="tiny", latent_dim=16, reward_scale="centered", bank=2_048)
        },
        "net_arch": [128, 128],
        "activation_fn": torch.nn.ReLU,
    }
    model = SAC(
        MEMSACPolicy,
        make_vec_env(lambda: manyview.make(TASK), 1, seed=seed),
        replay_buffer_class=MEMReplayBuffer,
        policy_kwargs=policy,
        seed=seed,
        device="cpu",
        **SETTINGS,
    )
    watch = Watch(TASK)
    model.learn(FRAMES, callback=CallbackList([MEMCallback(BetaSchedule(beta0=beta0)), watch]))
    return watch.judge.make_attempt(method, seed)
