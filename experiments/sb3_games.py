"""Train Stable-Baselines3's PPO on a game with the network and settings of `ppo+none` and preset `cpu`.

It shows whether the network or our PPO limits learning. Prints mean returns of training episodes per 50,000 steps.

    python -m experiments.sb3_games starpilot --steps 400000
"""

import argparse
from statistics import mean
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import Tensor, nn

from manyview.envs import make_vector
from manyview.methods import PixelEncoder
from manyview.training import load_preset

EVERY = 50_000


class Games(VecEnv):
    """Vector environment of games with the interface of Stable-Baselines3."""

    def __init__(self, task: str, envs: int, seed: int) -> None:
        self.games = make_vector(task, envs)
        self.first_seed = seed
        super().__init__(envs, spaces.Box(0, 255, (3, 64, 64), np.uint8), self.games.single_action_space)

    def reset(self) -> Any:
        observation, _ = self.games.reset(seed=self.first_seed)
        return _channels_first(observation)

    def step_async(self, actions: Any) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        observation, reward, terminated, truncated, info = self.games.step(self.actions)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in done]
        for place in np.flatnonzero(done):
            infos[place] = {
                "return": float(info["final_info"]["episode"]["return"][place]),
                "TimeLimit.truncated": bool(truncated[place]),
                "terminal_observation": _channels_first(info["final_obs"][place]),
            }
        return _channels_first(observation), np.asarray(reward, np.float32), done, infos

    def close(self) -> None:
        self.games.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ARG002
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ARG002
        return [False] * self.num_envs


def _channels_first(observation: Any) -> Any:
    return np.moveaxis(observation["screen"], -1, -3).copy()


class OurNetwork(BaseFeaturesExtractor):
    """Encoder of `none` as a features extractor."""

    def __init__(self, space: spaces.Box, config: Any) -> None:
        super().__init__(space, config.latent_dim)
        self.plain = PixelEncoder(1, (3, 64, 64), config)

    def forward(self, observations: Tensor) -> Tensor:
        return self.plain.encode(observations.to(torch.uint8).unsqueeze(1)).state


class Returns(BaseCallback):
    """Print the mean return of finished episodes every `EVERY` steps."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[float] = []

    def _on_step(self) -> bool:
        self.ended += [info["return"] for info in self.locals["infos"] if "return" in info]
        before = self.num_timesteps - self.training_env.num_envs
        if self.num_timesteps // EVERY > before // EVERY:
            print(f"{self.num_timesteps:9,} steps  return {mean(self.ended):.2f}", flush=True)
            self.ended = []
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = load_preset("cpu", task=f"procgen/{arguments.game}", method="ppo+none", seed=arguments.seed)
    ppo, envs = run.agent, run.rollout.envs
    games = VecNormalize(Games(run.task, envs, arguments.seed), norm_obs=False, gamma=ppo.discount)
    model = PPO(
        "CnnPolicy",
        games,
        n_steps=run.rollout.steps,
        batch_size=ppo.batch_size,
        n_epochs=ppo.epochs,
        learning_rate=ppo.lr,
        gamma=ppo.discount,
        gae_lambda=ppo.gae_lambda,
        clip_range=ppo.clip_coef,
        clip_range_vf=ppo.clip_coef,
        ent_coef=ppo.entropy_coef,
        vf_coef=ppo.value_coef / 2,  # ours halves the squared error
        max_grad_norm=ppo.max_grad_norm,
        policy_kwargs={
            "features_extractor_class": OurNetwork,
            "features_extractor_kwargs": {"config": run.representation},
            "net_arch": {"pi": [ppo.hidden, ppo.hidden], "vf": [ppo.hidden, ppo.hidden]},
            "activation_fn": nn.ReLU,
            "normalize_images": False,
        },
        seed=arguments.seed,
        device="cpu",
    )
    model.learn(arguments.steps, callback=Returns())


if __name__ == "__main__":
    main()
