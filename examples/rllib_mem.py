"""Train PPO of RLlib with MEM's encoder and bonus on Deep Sea, where chance finds the treasure every 1,024 episodes.

python examples/rllib_mem.py takes a minute on one core; --beta 0 trains without the bonus.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.tune.registry import register_env

import manyview
from manyview.adapters.rllib import MEMConnector, MEMModule
from manyview.mem import BetaSchedule

ENVS, STEPS, ROLLOUTS = 8, 40, 8


def make_config(beta0: float, seed: int) -> PPOConfig:
    """Return the settings of PPO, in one process."""
    register_env("deep_sea", lambda _: manyview.make("toy/deep_sea"))
    model_config = {"mem": {"trunk": "tiny", "latent_dim": 16, "reward_scale": "centered"}, "hidden": 64}
    config = PPOConfig().environment("deep_sea").debugging(seed=seed, log_level="ERROR")
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=ENVS, rollout_fragment_length=STEPS)
    config.learners(num_learners=0, learner_connector=lambda *_: MEMConnector(BetaSchedule(beta0), window=2_048))
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=MEMModule, model_config=model_config))
    config.training(
        train_batch_size_per_learner=ENVS * STEPS,
        minibatch_size=80,
        num_epochs=4,
        lr=1e-3,
        gamma=0.99,
        lambda_=0.95,
        clip_param=0.2,
        vf_loss_coeff=0.25,
        entropy_coeff=0.003,
        use_kl_loss=False,
        grad_clip=0.5,
    )
    return config


def act(module: Any, observation: dict[str, Any]) -> int:
    """Return the action without noise."""
    rows = {name: torch.as_tensor(np.asarray(part)[None]) for name, part in observation.items()}
    return int(module.forward_inference({Columns.OBS: rows})[Columns.ACTION_DIST_INPUTS].argmax())


def train(beta0: float, seed: int, on_rollout: Callable[[Any, Any], bool] | None = None) -> Any:
    """Train and return the module; `on_rollout` sees the algorithm and its results, and stops training by True."""
    algorithm = make_config(beta0, seed).build_algo()
    for _ in range(ROLLOUTS):
        result = algorithm.train()
        if on_rollout is not None and on_rollout(algorithm, result):
            break
    module = algorithm.get_module()
    algorithm.stop()
    return module


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beta", type=float, default=0.2)
    trained, env = train(parser.parse_args().beta, seed=1), manyview.make("toy/deep_sea")
    observation, total = env.reset(seed=0)[0], 0.0
    for _ in range(10):
        step = env.step(act(trained, observation))
        observation, total = step[0], total + float(step[1])
    print(f"return {total:.3f}: the treasure pays 1")
