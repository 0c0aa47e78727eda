"""PPO of RLlib on Deep Sea, as in `examples/rllib_mem.py`."""

from typing import Any

import numpy as np
import torch

from examples.rllib_mem import ENVS, STEPS, act, train
from experiments.adapters.judge import Judge
from experiments.deep_sea import Attempt


def run(method: str, *, beta0: float, seed: int) -> Attempt:
    torch.set_num_threads(1)
    algorithms: list[Any] = []
    judge = Judge("toy/deep_sea", lambda observation: act(algorithms[-1].get_module(), observation))

    def on_rollout(algorithm: Any, result: Any) -> bool:
        algorithms.append(algorithm)
        judge.see_rewards(np.asarray([result["env_runners"]["episode_return_max"]]), judge.frames + ENVS * STEPS)
        return judge.is_solved()

    train(beta0, seed, on_rollout)
    return judge.make_attempt(method, seed)
