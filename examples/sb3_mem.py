"""Train PPO or SAC of Stable-Baselines3 with MEM's encoder and bonus on the hidden goal.

python examples/sb3_mem.py takes a minute on one core; --agent sac trains SAC.
Each of two cameras shows one coordinate of the goal: both together find it at every step, one alone at every third.
"""

import argparse
from typing import Any

import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import manyview
from manyview.adapters.sb3 import MEMCallback, MEMExtractor, MEMReplayBuffer, MEMRolloutBuffer, MEMSACPolicy
from manyview.mem import BetaSchedule, MEMConfig

STEPS = {"ppo": 10_000, "sac": 1_500}


def make_env(task: str, agent: str, num_envs: int, seed: int) -> Any:
    """Return environments, with discrete actions for PPO and continuous ones for SAC."""
    name = f"toy/{task}" if agent == "ppo" else f"toy/{task}_continuous"
    return make_vec_env(lambda: manyview.make(name), num_envs, seed=seed)


def make_model(task: str, agent: str, seed: int) -> PPO | SAC:
    """Return an agent of Stable-Baselines3 with MEM."""
    config = MEMConfig(trunk="tiny", latent_dim=32, reward_scale="centered")
    policy: dict[str, Any] = {
        "features_extractor_class": MEMExtractor,
        "features_extractor_kwargs": {"config": config},
        "net_arch": [256, 256],
        "activation_fn": torch.nn.ReLU,
    }
    if agent == "sac":
        return SAC(
            MEMSACPolicy,
            make_env(task, agent, 1, seed),
            learning_rate=1e-3,
            buffer_size=10_000,
            learning_starts=200,
            batch_size=64,
            gamma=0.9,
            ent_coef="auto_0.1",
            replay_buffer_class=MEMReplayBuffer,
            policy_kwargs=policy,
            seed=seed,
        )
    return PPO(
        "MultiInputPolicy",
        make_env(task, agent, 16, seed),
        learning_rate=5e-4,
        n_steps=32,
        batch_size=128,
        n_epochs=4,
        gamma=0.9,
        ent_coef=0.03,
        rollout_buffer_class=MEMRolloutBuffer,
        policy_kwargs=policy,
        seed=seed,
    )


def train(task: str, agent: str, seed: int = 1) -> float:
    """Train an agent and return its mean reward a step."""
    model = make_model(task, agent, seed)
    model.learn(STEPS[agent], callback=MEMCallback(BetaSchedule(beta0=0.05)))
    mean_return: Any = evaluate_policy(model, make_env(task, agent, 1, seed=1_000), n_eval_episodes=100)[0]
    return float(mean_return) / 10  # steps of an episode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", choices=STEPS, default="ppo")
    chosen = parser.parse_args().agent
    print(f"{chosen}: finds the goal at {train('hidden_goal', chosen):.0%} of the steps")
