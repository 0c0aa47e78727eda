"""PPO of TorchRL on Deep Sea, as in `examples/torchrl_mem.py`."""

from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, set_interaction_type

from examples.torchrl_mem import VIEWS, train
from experiments.adapters.judge import Judge
from experiments.deep_sea import Attempt


def run(method: str, *, beta0: float, seed: int) -> Attempt:
    torch.set_num_threads(1)
    policies: list[Any] = []

    def act(observation: dict[str, Any]) -> int:
        images = {name: torch.as_tensor(observation[name].transpose(2, 0, 1).copy()).unsqueeze(0) for name in VIEWS}
        rows = TensorDict({**images, "mask": torch.as_tensor(observation["mask"]).unsqueeze(0)}, batch_size=[1])
        with torch.no_grad(), set_interaction_type(InteractionType.DETERMINISTIC):
            return int(policies[-1](rows)["action"])

    judge = Judge("toy/deep_sea", act)

    def on_rollout(rollout: Any, policy: Any) -> bool:
        policies.append(policy)
        judge.see_rewards(rollout["next", "reward"], judge.frames + rollout.numel())
        return judge.is_solved()

    train(beta0, seed, on_rollout)
    return judge.make_attempt(method, seed)
