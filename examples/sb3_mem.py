"""Train PPO or SAC of Stable-Baselines3 with MEM's encoder and bonus on the hidden goal.

    python examples/sb3_mem.py            # PPO, a minute on one core
    python examples/sb3_mem.py --agent sac

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

STEPS = {"ppo": 20_000, "sac": 1_500}


def make_env(agent: str, num_envs: int, seed: int) -> Any:
    """Return environments, with discrete actions for PPO and continuous ones for SAC."""
    task = "toy/hidden_goal" if agent == "ppo" else "toy/hidden_goal_continuous"
    return make_vec_env(lambda: manyview.make(task), num_envs, seed=seed)


def make_model(agent: str, seed: int) -> PPO | SAC:
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
            make_env(agent, 1, seed),
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
        make_env(agent, 16, seed),
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


def main() -> None:
    """Train an agent and print how often it finds the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", choices=STEPS, default="ppo")
    agent = parser.parse_args().agent
    model = make_model(agent, seed=1)
    model.learn(STEPS[agent], callback=MEMCallback(BetaSchedule(beta0=0.05)))
    mean_return: Any = evaluate_policy(model, make_env(agent, 1, seed=1_000), n_eval_episodes=100)[0]
    print(f"{agent}: finds the goal at {mean_return / 10:.0%} of the steps")  # of ten steps in an episode


if __name__ == "__main__":
    main()
