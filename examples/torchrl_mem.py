"""Train PPO of TorchRL with MEM's encoder and bonus on Deep Sea, where chance finds the treasure every 1,024 episodes.

python examples/torchrl_mem.py takes half a minute on one core; --beta 0 trains without the bonus.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from tensordict.nn import InteractionType, TensorDictModule, TensorDictSequential, set_interaction_type
from torch import nn
from torchrl.envs import GymWrapper, PermuteTransform, SerialEnv, TransformedEnv
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import manyview
from manyview.adapters.torchrl import STATE, MEMBonus, MEMEncoder, MEMLoss
from manyview.mem import MEM, BetaSchedule, MEMConfig

VIEWS, ENVS, STEPS, ROLLOUTS, EPOCHS, BATCH = ["depth", "column"], 8, 40, 8, 4, 80


def make_env() -> Any:
    """Return the environment with channels first."""
    env = GymWrapper(manyview.make("toy/deep_sea"), categorical_action_encoding=True)
    return TransformedEnv(env, PermuteTransform((-1, -3, -2), in_keys=VIEWS))


def make_head(inputs: int, outputs: int, gain: float = 1.0) -> nn.Module:
    """Return a small network on MEM's state, with this gain in its last layer."""
    last = nn.Linear(64, outputs)
    nn.init.orthogonal_(last.weight, gain)
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), last)


def train(beta0: float, seed: int, on_rollout: Callable[[Any, Any], bool] | None = None) -> Any:
    """Train and return the policy; `on_rollout` sees each rollout and the policy, and stops training by True."""
    torch.manual_seed(seed)
    mem = MEM(VIEWS, (1, 20, 20), MEMConfig(trunk="tiny", latent_dim=16, reward_scale="centered"))
    encoder = MEMEncoder(mem, mask_key="mask")
    logits = TensorDictModule(make_head(mem.state_dim, 2, gain=0.01), in_keys=[STATE], out_keys=["logits"])
    options: Any = {"distribution_class": torch.distributions.Categorical, "return_log_prob": True}
    options |= {"in_keys": ["logits"], "default_interaction_type": InteractionType.RANDOM}  # by default without noise
    head, policy = (ProbabilisticActor(part, **options) for part in (logits, TensorDictSequential(encoder, logits)))
    value = ValueOperator(make_head(mem.state_dim, 1), in_keys=[STATE])
    bonus, mem_loss = MEMBonus(encoder, BetaSchedule(beta0), window=2_048), MEMLoss(encoder)
    ppo_loss = ClipPPOLoss(head, value, entropy_coeff=0.003, critic_coeff=0.5, normalize_advantage=True)
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=value)
    parameters = [*mem.parameters(), *head.parameters(), *value.parameters()]
    optimizer, env = torch.optim.Adam(parameters, lr=1e-3), SerialEnv(ENVS, make_env)
    env.set_seed(seed)
    for _ in range(ROLLOUTS):
        with torch.no_grad():
            rollout = env.rollout(STEPS, policy, break_when_any_done=False)  # [ENVS, STEPS]
            bonus.elapsed += rollout.numel()
            paid = bonus(rollout)
            encoder(paid["next"])  # for its value
            data = advantages(paid).flatten(0, 1)
        for rows in torch.cat([torch.randperm(len(data)) for _ in range(EPOCHS)]).split(BATCH):
            batch = data[rows]
            losses = mem_loss(batch).update(ppo_loss(batch))  # the first encodes the batch for the second
            loss = sum(losses[f"loss_{name}"] for name in ("mem", "objective", "critic", "entropy"))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
        if on_rollout is not None and on_rollout(rollout, policy):
            break
    return policy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beta", type=float, default=0.2)
    trained = train(parser.parse_args().beta, seed=1)
    with torch.no_grad(), set_interaction_type(InteractionType.DETERMINISTIC):
        reward = make_env().rollout(10, trained)["next", "reward"].sum().item()
    print(f"return {reward:.3f}: the treasure pays 1")
