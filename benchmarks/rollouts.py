"""Compare an iteration of PPO with MEM on Procgen, at the paper's size, with its bare parts.

    python -m benchmarks.rollouts [--rounds 20]

Acting: steps of 64 games with views derived, encoded and stored, then rewards and advantages, against the steps of bare
EnvPool and the forward pass of the bare networks on as many images. Learning: gathering a minibatch and updating on it,
against the bare forward and backward pass of the same networks. Both sides alternate in turns of a few steps; figures
are medians over the turns, in wall time, because EnvPool has its own threads.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch

from manyview.agents import PPO
from manyview.config.overrides import apply_overrides, merge_overrides
from manyview.training import OnPolicyTrainer, load_preset
from manyview.utils.resources import keep_freed_memory

TASK = "procgen/bigfish"
STEPS = 32
"""Rollout steps, an eighth of the paper's: work done once per rollout weighs eight times as much."""


@dataclass(frozen=True)
class Costs:
    """Time ratios, and the share of the k-NN search in an iteration of 256 steps."""

    acting: float
    learning: float
    knn_share: float


def make_trainer(**changes: Any) -> OnPolicyTrainer:
    config = load_preset("paper/procgen/ppo", task=TASK, method="ppo+mem", seed=1)
    settings = {"rollout": {"steps": STEPS}, "compute": {"device": "cpu", "threads": torch.get_num_threads()}}
    return OnPolicyTrainer(apply_overrides(config, merge_overrides(settings, changes)))


def make_bare_acting(trainer: OnPolicyTrainer) -> Callable[[], None]:
    """Return steps of bare EnvPool and of the networks on existing images."""
    import envpool

    envs, agent = trainer.config.rollout.envs, cast(PPO, trainer.agent)
    threads = trainer.config.compute.threads
    pool = envpool.make_gymnasium("BigfishEasy-v0", num_envs=envs, num_threads=threads, seed=0, num_levels=200)
    pool.reset()
    rng = np.random.default_rng(0)
    views, mask = (part.clone() for part in trainer.rollout.get_observation())

    @torch.no_grad()
    def act() -> None:
        for _ in range(STEPS):
            state = agent.representation.encode(views, mask).state
            agent.policy(state)
            agent.value(state)
            pool.step(rng.integers(15, size=envs).astype(np.int32))

    return act


def make_our_acting(trainer: OnPolicyTrainer) -> Callable[[], None]:
    def act() -> None:
        while not trainer._minibatches:
            trainer.advance()
        trainer._minibatches = []
        trainer.rollout.reset(trainer.rollout.frames[-1].clone(), trainer.rollout.mask[-1].clone(), first_step=0)

    return act


def make_bare_learning(trainer: OnPolicyTrainer) -> Callable[[], None]:
    """Return the forward and backward pass of the same networks on the same minibatch, with a sum as loss."""
    agent, batch = cast(PPO, trainer.agent), _get_minibatch(trainer)

    def learn() -> None:
        agent.zero_grad(set_to_none=True)
        state = agent.representation.encode(batch.views, batch.mask).state
        (agent.policy(state).sum() + agent.value(state).sum()).backward()

    return learn


def make_our_learning(trainer: OnPolicyTrainer) -> Callable[[], None]:
    rows = torch.arange(trainer.config.agent.batch_size)

    def learn() -> None:
        trainer.agent.update(trainer.rollout.get_minibatch(rows))

    return learn


def _get_minibatch(trainer: OnPolicyTrainer) -> Any:
    return trainer.rollout.get_minibatch(torch.arange(trainer.config.agent.batch_size))


def measure(*, rounds: int) -> Costs:
    keep_freed_memory()
    trainer = make_trainer()
    acting = _measure_ratio(make_our_acting(trainer), make_bare_acting(trainer), rounds=rounds)
    while not trainer._minibatches:
        trainer.advance()
    learning = _measure_ratio(make_our_learning(trainer), make_bare_learning(trainer), rounds=rounds)
    update_s = median(_time(make_our_learning(trainer)) for _ in range(3))
    act_s = median(_time(make_our_acting(trainer)) for _ in range(3)) / STEPS
    trainer.close()
    return Costs(acting, learning, _measure_knn_share(step_s=act_s, update_s=update_s))


def _measure_knn_share(*, step_s: float, update_s: float) -> float:
    """Return the share of the k-NN search over 16,384 rows with the window in an iteration of as many rows."""
    pooled = make_trainer(rollout={"steps": 256}, agent={"neighbors": "pooled"})
    config, agent, rollout = pooled.config, pooled.agent, pooled.rollout
    rows = config.rollout.envs * config.rollout.steps
    features: Any = agent.representation.encode(*rollout.get_observation())
    rollout.features = type(features)(
        *(
            part.detach().unsqueeze(0).expand(257, *part.shape).clone()
            if part.dtype == torch.bool
            else torch.randn(257, *part.shape, generator=torch.Generator().manual_seed(1))
            for part in features
        )
    )
    knn_s = median(_time(lambda: agent.compute_bonus(rollout)) for _ in range(2))
    pooled.close()
    updates: float = config.agent.epochs * rows / config.agent.batch_size
    return knn_s / (256 * step_s + updates * update_s)


def _measure_ratio(ours: Callable[[], None], bare: Callable[[], None], *, rounds: int) -> float:
    for work in (ours, bare):
        work()
    return median(_time(ours) / _time(bare) for _ in range(rounds))


def _time(work: Callable[[], object]) -> float:
    start_s = perf_counter()
    work()
    return perf_counter() - start_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    costs = measure(rounds=parser.parse_args().rounds)
    print(f"acting, storing, reward and advantages   {costs.acting:.3f} times the bare parts (bar 1.25)")
    print(f"an update                                {costs.learning:.3f} times bare forward and backward (bar 1.10)")
    print(f"k-NN search                              {100 * costs.knn_share:.2f} % of an iteration (bar 3)")


if __name__ == "__main__":
    main()
