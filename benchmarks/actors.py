"""What many actors give and cost, on Ray, side by side in one run.

    python -m benchmarks.actors collecting   steps a second of 1, 2 and 4 actors, against as many bare loops
    python -m benchmarks.actors chunks       the same with chunks of 1 step and of 200
    python -m benchmarks.actors waiting      what share of its time a learner waits for batches
    python -m benchmarks.actors overhead     a run with one actor against one process, both on one core
    python -m benchmarks.actors killing      one of four actors is killed every 5 s for a minute (QUALITY L1)

A bare loop is a process that steps the environment with random actions and keeps nothing.
"""

import argparse
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import Any

import gymnasium as gym
import ray

import manyview
from benchmarks.processes import BUSY_ACTOR_NAME, find_descendants
from manyview.config.overrides import apply_overrides
from manyview.data import AsyncWriter
from manyview.scale.actor_pool import ActorLost, ActorPool, Delivery
from manyview.scale.chunk_collector import get_policy_weights
from manyview.scale.cluster import connect
from manyview.scale.replay_shard import ReplayShard
from manyview.scale.trainer import ActorLearnerTrainer
from manyview.train import OffPolicyTrainer, RunConfig, factory, load_preset
from manyview.train.compute import configure_torch
from manyview.train.trainer import AdvanceResult, Trainer

RENDERED = "dmc/quadruped_run"
"""Nine tenths of a step of it are spent on drawing, without a graphics card."""
QUICK = "toy/identity_continuous"
ROBOT = "benchmarks.actors:make_robot"
"""Twenty steps a second, whatever the machine: where actors share cores, whoever survives gets those of the dead."""
MANY = 10**9
KILL_EVERY_S = 5.0
KEY = b"the key of a benchmark"


class FixedRateEnv(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        sleep(0.05)
        return self.env.step(action)


def make_robot() -> gym.Env[Any, Any]:
    return FixedRateEnv(manyview.make(QUICK))


def make_config(task: str, *, actors: int, chunk_steps: int = 50, **changes: Any) -> RunConfig:
    """The policy acts from the first step; nobody learns unless asked to."""
    base = load_preset("cpu" if task.startswith("dmc") else "minute", task=task, method="drqv2+mem", seed=1)
    settings = {
        "schedule": {"random_steps": 0, "frames": MANY},
        "scale": {"actors": actors, "chunk_steps": chunk_steps},
        "machine": {"device": "cpu", "threads": 1},
    }
    return apply_overrides(apply_overrides(base, settings), changes)


@dataclass
class Deliveries:
    """When each actor delivered how many steps."""

    at_s: dict[int, list[float]]
    steps: dict[int, list[int]]

    def rates(self) -> list[float]:
        """Steps a second of each, between its first delivery and its last."""
        return [sum(self.steps[actor][1:]) / (times[-1] - times[0]) for actor, times in self.at_s.items()]


@contextmanager
def open_actor_pool(config: RunConfig) -> Iterator[tuple[ActorPool, Any]]:
    """Actors and one shard, without a learner, and weights for them."""
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    shard: Any = ray.remote(ReplayShard).options(num_cpus=0).remote(config, shapes, index=0, count=1, key=KEY)
    fleet = ActorPool(config, shapes, [shard], key=KEY)
    try:
        yield fleet, ray.put(get_policy_weights(factory.build_agent(config, shapes)))
    finally:
        fleet.close()
        ray.kill(shard)


def watch_deliveries(fleet: ActorPool, weights: Any, config: RunConfig, *, seconds: float) -> Deliveries:
    """For so long after every actor has delivered once."""
    found = Deliveries({}, {})
    began_s: float | None = None
    while began_s is None or monotonic() - began_s < seconds:
        fleet.request_chunks(weights, step=0, max_steps=MANY, chunk_steps=config.scale.chunk_steps)
        for one in fleet.poll(wait_s=0.05):
            if isinstance(one, Delivery) and not one.result.rejection:
                found.at_s.setdefault(one.actor, []).append(monotonic())
                found.steps.setdefault(one.actor, []).append(config.scale.chunk_steps)
        if began_s is None and len(found.at_s) == len(fleet.slots):
            began_s = monotonic()
    return found


def _run_bare_loop(config: RunConfig, seconds: float, barrier: Any, answers: Any) -> None:
    configure_torch(config.machine)
    env = factory.make_env(config)
    env.action_space.seed(1)
    env.reset(seed=1)
    for _ in range(3):
        env.step(env.action_space.sample())
    barrier.wait(timeout=120)
    began_s, steps = monotonic(), 0
    while monotonic() - began_s < seconds:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
        steps += 1
    answers.put(steps / (monotonic() - began_s))


def measure_bare_rates(config: RunConfig, *, loops: int, seconds: float) -> list[float]:
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(loops), spawn.Queue()
    processes = [spawn.Process(target=_run_bare_loop, args=(config, seconds, barrier, answers)) for _ in range(loops)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=seconds + 120) for _ in processes]
    for process in processes:
        process.join(60)
    return found


def measure_collecting(*, task: str, seconds: float, rounds: int) -> None:
    print(f"{task}: steps a second and actor (or loop), medians of {rounds} rounds")
    for actors in (1, 2, 4):
        config, ratios = make_config(task, actors=actors), []
        for _ in range(rounds):
            bare = sum(measure_bare_rates(config, loops=actors, seconds=seconds)) / actors
            with connect(None, cpus=actors + 1), open_actor_pool(config) as (fleet, weights):
                ours = sum(watch_deliveries(fleet, weights, config, seconds=seconds).rates()) / actors
            ratios.append(ours / bare)
            print(f"  {actors} actors: {ours:6.1f}, bare loops {bare:6.1f}, ratio {ours / bare:.3f}", flush=True)
        print(f"  {actors} actors: ratio {median(ratios):.3f}", flush=True)


def measure_chunk_sizes(*, seconds: float) -> None:
    for steps in (1, 10, 50, 200):
        config = make_config(QUICK, actors=1, chunk_steps=steps, replay={"n_step": 1})
        with connect(None, cpus=2), open_actor_pool(config) as (fleet, weights):
            (rate,) = watch_deliveries(fleet, weights, config, seconds=seconds).rates()
        print(f"chunks of {steps:3} steps: {rate:8.1f} steps a second", flush=True)


def measure_waiting(*, updates: int) -> None:
    config = make_config(QUICK, actors=1, chunk_steps=200)
    configure_torch(config.machine)
    with connect(None, cpus=2), open_segment_log(ActorLearnerTrainer(config)) as trainer:
        waited_s, batches = 0.0, trainer.batch_loader.sample

        def timed() -> Any:
            nonlocal waited_s
            began_s = perf_counter()
            batch = batches()
            waited_s += perf_counter() - began_s
            return batch

        trainer.batch_loader.sample = timed
        while trainer.counters.updates < 200:
            trainer.advance()
        began_s, idle_s, waited_s = perf_counter(), 0.0, 0.0
        while trainer.counters.updates < 200 + updates:
            before_s, made = perf_counter(), trainer.counters.updates
            trainer.advance()
            idle_s += perf_counter() - before_s if trainer.counters.updates == made else 0.0
        taken_s = perf_counter() - began_s
    print(
        f"of {taken_s:.1f} s for {updates} updates: {100 * waited_s / taken_s:.2f} % waiting for batches, "
        f"{100 * idle_s / taken_s:.2f} % without steps to learn from"
    )


def measure_overhead(*, steps: int) -> None:
    """On one core, so that what Ray does besides is not hidden on another one."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    alone, many = (make_config(QUICK, actors=actors, chunk_steps=200) for actors in (0, 1))
    configure_torch(alone.machine)
    begun, ratios = 600, []
    for _ in range(3):
        with open_segment_log(OffPolicyTrainer(alone)) as trainer:
            one_s = _time_steps(trainer, begun, begun + steps)
        with connect(None, cpus=2), open_segment_log(ActorLearnerTrainer(many)) as acted:
            many_s = _time_steps(acted, begun, begun + steps)
        ratios.append(many_s / one_s)
        print(
            f"{steps} steps with their updates: one process {one_s:.2f} s, one actor on Ray {many_s:.2f} s", flush=True
        )
    os.sched_setaffinity(0, cores)
    print(f"ratio {median(ratios):.3f}")


@contextmanager
def open_segment_log(trainer: Trainer) -> Iterator[Any]:
    """With its steps written down, as a run has it."""
    with TemporaryDirectory() as folder:
        scribe = AsyncWriter()
        log = trainer.open_log(Path(folder), scribe)
        advance = trainer.advance

        def followed() -> AdvanceResult:
            advanced = advance()
            log.flush_full_segments()
            return advanced

        trainer.advance = followed  # type: ignore[method-assign]
        try:
            yield trainer
        finally:
            trainer.close()
            scribe.close()


def _time_steps(trainer: Any, first: int, last: int) -> float:
    while trainer.counters.steps < first:
        trainer.advance()
    began_s = perf_counter()
    while trainer.counters.steps < last:
        trainer.advance()
    return perf_counter() - began_s


def measure_kills(*, task: str = ROBOT, seconds: float = 60.0) -> tuple[float, float]:
    """The share of survivors, and how many seconds the slowest needed to be back.

    A share is what is delivered a second and living actor, against the same time without kills.
    """
    config = make_config(task, actors=4, chunk_steps=20)
    with connect(None, cpus=6), open_actor_pool(config) as (fleet, weights):
        peace = sum(watch_deliveries(fleet, weights, config, seconds=seconds).rates())
        delivered, kills, dead_s = 0, 0, 0.0
        killed_s: dict[int, float] = {}
        back_s: list[float] = []
        began_s = last_s = monotonic()
        while monotonic() - began_s < seconds:
            fleet.request_chunks(weights, step=0, max_steps=MANY, chunk_steps=config.scale.chunk_steps)
            for one in fleet.poll(wait_s=0.05):
                if isinstance(one, ActorLost):
                    killed_s.setdefault(one.actor, last_s)  # killed again before it was back: dead all along
                    continue
                delivered += 0 if one.result.rejection else config.scale.chunk_steps
                if one.actor in killed_s:
                    back_s.append(monotonic() - killed_s.pop(one.actor))
                    dead_s += back_s[-1] - one.stats.seconds  # it was alive while it made this chunk
            if monotonic() - last_s >= KILL_EVERY_S:
                living = [pid for pid, name in find_descendants(os.getpid()).items() if BUSY_ACTOR_NAME in name]
                os.kill(living[kills % len(living)], signal.SIGKILL)
                last_s, kills = monotonic(), kills + 1
        dead_s += sum(monotonic() - since_s for since_s in killed_s.values())
    if not back_s:
        raise SystemExit(f"{kills} kills in {seconds:g} s, and nobody came back")
    share = delivered / seconds / (peace * (1 - dead_s / (4 * seconds)))
    print(
        f"{kills} kills in {seconds:g} s: {100 * share:.0f} % of the survivors' share (bar 90), back with a chunk of "
        f"{config.scale.chunk_steps} steps after {median(back_s):.1f} s, at most {max(back_s):.1f} (bar 5)"
    )
    return share, max(back_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["collecting", "chunks", "waiting", "overhead", "killing"])
    parser.add_argument("--task")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    if asked.what == "collecting":
        measure_collecting(task=asked.task or RENDERED, seconds=asked.seconds, rounds=asked.rounds)
    elif asked.what == "chunks":
        measure_chunk_sizes(seconds=asked.seconds)
    elif asked.what == "waiting":
        measure_waiting(updates=2_000)
    elif asked.what == "overhead":
        measure_overhead(steps=1_000)
    else:
        measure_kills(task=asked.task or ROBOT, seconds=2 * asked.seconds)


if __name__ == "__main__":
    main()
