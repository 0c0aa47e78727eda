"""PPO of Stable-Baselines3 on Deep Sea."""

from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.env_util import make_vec_env

import manyview
from experiments.adapters.judge import Judge
from experiments.deep_sea import Attempt
from manyview.adapters.sb3 import MEMCallback, MEMExtractor, MEMRolloutBuffer
from manyview.mem import BetaSchedule, MEMConfig

TASK = "toy/deep_sea"
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "n_steps": 40,
    "batch_size": 80,
    "n_epochs": 4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range_vf": 0.2,
    "ent_coef": 0.003,
    "vf_coef": 0.25,  # manyview's halves the squared error
}
ENVS, FRAMES, WINDOW = 8, 2_560, 2_048


class Watch(BaseCallback):
    """Shows training rewards and the policy to a judge; stops when the seed is solved."""

    def __init__(self, task: str) -> None:
        super().__init__()
        self.judge = Judge(task, lambda observation: self.model.predict(observation, deterministic=True)[0])

    def _on_step(self) -> bool:
        self.judge.see_rewards(self.locals["rewards"], self.num_timesteps)
        return self.judge.solved_at is None

    def _on_rollout_start(self) -> None:
        self.judge.is_solved()

    def _on_training_end(self) -> None:
        self.judge.is_solved()


def run(method: str, *, beta0: float, seed: int) -> Attempt:
    torch.set_num_threads(1)
    config = MEMConfig(trunk="tiny", latent_dim=16, reward_scale="centered")
    policy: dict[str, Any] = {
        "features_extractor_class": MEMExtractor,
        "features_extractor_kwargs": {"config": config},
        "net_arch": [64, 64],
        "activation_fn": torch.nn.ReLU,
    }
    model = PPO(
        "MultiInputPolicy",
        make_vec_env(lambda: manyview.make(TASK), ENVS, seed=seed),
        rollout_buffer_class=MEMRolloutBuffer,
        policy_kwargs=policy,
        seed=seed,
        device="cpu",
        **SETTINGS,
    )
    watch = Watch(TASK)
    model.learn(FRAMES, callback=CallbackList([MEMCallback(BetaSchedule(beta0=beta0), window=WINDOW), watch]))
    return watch.judge.make_attempt(method, seed)
