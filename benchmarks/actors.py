"""Measure the throughput and overhead of Ray actors.

    python -m benchmarks.actors collecting   steps per second of 1, 2 and 4 actors against as many bare loops
    python -m benchmarks.actors chunks       steps per second with chunks of 1, 10, 50 and 200 steps
    python -m benchmarks.actors waiting      share of its time that a learner waits for batches
    python -m benchmarks.actors overhead     a run with one actor against one process, both on one core
    python -m benchmarks.actors killing      one of four actors is killed every 5 s for a minute (quality row L1)

A bare loop is a process that steps the environment with random actions and stores nothing.
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
from manyview.scale.cluster import connect, count_cpus
from manyview.scale.replay_shard import ReplayShard
from manyview.scale.trainer import ActorLearnerTrainer
from manyview.training import OffPolicyTrainer, RunConfig, factory, load_preset
from manyview.training.compute import configure_torch
from manyview.training.trainer import AdvanceResult, Trainer

RENDERED = "dmc/quadruped_run"
"""Rendering takes nine tenths of a step without a GPU."""
QUICK = "toy/identity_continuous"
ROBOT = "benchmarks.actors:make_robot"
"""Twenty steps per second on any machine. If actors shared cores, survivors would speed up after a kill."""
MANY = 10**9
KILL_EVERY_S = 5.0
KEY = b"the key of a benchmark"


class FixedRateEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Environment that takes at least 0.05 s per step."""

    def step(self, action: Any) -> Any:
        sleep(0.05)
        return self.env.step(action)


def make_robot() -> gym.Env[Any, Any]:
    return FixedRateEnv(manyview.make(QUICK))


def make_config(task: str, *, actors: int, chunk_steps: int = 50, **changes: Any) -> RunConfig:
    """Return a config whose policy acts from the first step and which never ends."""
    base = load_preset("cpu" if task.startswith("dmc") else "minute", task=task, method="drqv2+mem", seed=1)
    settings = {
        "schedule": {"random_steps": 0, "frames": MANY},
        "scale": {"actors": actors, "chunk_steps": chunk_steps},
        "compute": {"device": "cpu", "threads": 1},
    }
    return apply_overrides(apply_overrides(base, settings), changes)


@dataclass
class Deliveries:
    """Times and step counts of the chunks of each actor."""

    at_s: dict[int, list[float]]
    steps: dict[int, list[int]]

    def compute_rates(self) -> list[float]:
        """Return the steps per second of each actor between its first and its last delivery."""
        return [sum(self.steps[actor][1:]) / (times[-1] - times[0]) for actor, times in self.at_s.items()]


@contextmanager
def open_actor_pool(config: RunConfig) -> Iterator[tuple[ActorPool, Any]]:
    """Start actors and one shard without a learner; yield the pool and policy weights."""
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    shard: Any = ray.remote(ReplayShard).options(num_cpus=0).remote(config, shapes, index=0, count=1, key=KEY)
    pool = ActorPool(config, shapes, [shard], key=KEY)
    try:
        yield pool, ray.put(get_policy_weights(factory.build_agent(config, shapes)))
    finally:
        pool.close()
        ray.kill(shard)


def watch_deliveries(pool: ActorPool, weights: Any, config: RunConfig, *, seconds: float) -> Deliveries:
    """Record deliveries for `seconds` after every actor has delivered once."""
    deliveries = Deliveries({}, {})
    start_s: float | None = None
    while start_s is None or monotonic() - start_s < seconds:
        pool.request_chunks(weights, step=0, max_steps=MANY, chunk_steps=config.scale.chunk_steps)
        for event in pool.poll(wait_s=0.05):
            if isinstance(event, Delivery) and not event.result.rejection:
                deliveries.at_s.setdefault(event.actor, []).append(monotonic())
                deliveries.steps.setdefault(event.actor, []).append(config.scale.chunk_steps)
        if start_s is None and len(deliveries.at_s) == len(pool.slots):
            start_s = monotonic()
    return deliveries


def _run_bare_loop(config: RunConfig, seconds: float, barrier: Any, queue: Any) -> None:
    configure_torch(config.compute)
    env = factory.make_env(config)
    env.action_space.seed(1)
    env.reset(seed=1)
    for _ in range(3):
        env.step(env.action_space.sample())
    barrier.wait(timeout=120)
    start_s, steps = monotonic(), 0
    while monotonic() - start_s < seconds:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
        steps += 1
    queue.put(steps / (monotonic() - start_s))


def measure_bare_rates(config: RunConfig, *, loops: int, seconds: float) -> list[float]:
    spawn = multiprocessing.get_context("spawn")
    barrier, queue = spawn.Barrier(loops), spawn.Queue()
    processes = [spawn.Process(target=_run_bare_loop, args=(config, seconds, barrier, queue)) for _ in range(loops)]
    for process in processes:
        process.start()
    rates = [queue.get(timeout=seconds + 120) for _ in processes]
    for process in processes:
        process.join(60)
    return rates


def measure_collecting(*, task: str, seconds: float, rounds: int) -> None:
    print(f"{task}: steps per second and actor (or loop), medians of {rounds} rounds")
    for actors in (1, 2, 4):
        config, ratios = make_config(task, actors=actors), []
        for _ in range(rounds):
            bare = sum(measure_bare_rates(config, loops=actors, seconds=seconds)) / actors
            with connect(None, cpus=actors + 1), open_actor_pool(config) as (pool, weights):
                ours = sum(watch_deliveries(pool, weights, config, seconds=seconds).compute_rates()) / actors
            ratios.append(ours / bare)
            print(f"  {actors} actors: {ours:6.1f}, bare loops {bare:6.1f}, ratio {ours / bare:.3f}", flush=True)
        print(f"  {actors} actors: ratio {median(ratios):.3f}", flush=True)


def measure_chunk_sizes(*, seconds: float) -> None:
    for steps in (1, 10, 50, 200):
        config = make_config(QUICK, actors=1, chunk_steps=steps, replay={"n_step": 1})
        with connect(None, cpus=2), open_actor_pool(config) as (pool, weights):
            (rate,) = watch_deliveries(pool, weights, config, seconds=seconds).compute_rates()
        print(f"chunks of {steps:3} steps: {rate:8.1f} steps per second", flush=True)


def measure_waiting(*, updates: int) -> None:
    config = make_config(QUICK, actors=1, chunk_steps=200)
    configure_torch(config.compute)
    with connect(None, cpus=count_cpus(config, spares=1)), open_segment_log(ActorLearnerTrainer(config)) as trainer:
        waited_s, sample = 0.0, trainer.batch_loader.sample

        def sample_timed() -> Any:
            nonlocal waited_s
            start_s = perf_counter()
            batch = sample()
            waited_s += perf_counter() - start_s
            return batch

        trainer.batch_loader.sample = sample_timed
        while trainer.counters.updates < 200:
            trainer.advance()
        start_s, idle_s, waited_s = perf_counter(), 0.0, 0.0
        while trainer.counters.updates < 200 + updates:
            before_s, updates_before = perf_counter(), trainer.counters.updates
            trainer.advance()
            idle_s += perf_counter() - before_s if trainer.counters.updates == updates_before else 0.0
        taken_s = perf_counter() - start_s
    print(
        f"{updates} updates in {taken_s:.1f} s: {100 * waited_s / taken_s:.2f} % waiting for batches, "
        f"{100 * idle_s / taken_s:.2f} % without new steps"
    )


def measure_overhead(*, steps: int) -> None:
    """Compare one actor on Ray with one process, on one core: another core would hide Ray's own work."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    local_config, ray_config = (make_config(QUICK, actors=actors, chunk_steps=200) for actors in (0, 1))
    configure_torch(local_config.compute)
    first_step, ratios = 600, []
    for _ in range(3):
        with open_segment_log(OffPolicyTrainer(local_config)) as trainer:
            local_s = _time_steps(trainer, first_step, first_step + steps)
        with (
            connect(None, cpus=count_cpus(ray_config, spares=1)),
            open_segment_log(ActorLearnerTrainer(ray_config)) as ray_trainer,
        ):
            ray_s = _time_steps(ray_trainer, first_step, first_step + steps)
        ratios.append(ray_s / local_s)
        print(
            f"{steps} steps and their updates: one process {local_s:.2f} s, one actor on Ray {ray_s:.2f} s", flush=True
        )
    os.sched_setaffinity(0, cores)
    print(f"ratio {median(ratios):.3f}")


@contextmanager
def open_segment_log(trainer: Trainer) -> Iterator[Any]:
    """Yield the trainer with its steps written to a segment log, as in a run."""
    with TemporaryDirectory() as directory:
        writer = AsyncWriter()
        log = trainer.open_log(Path(directory), writer)
        advance = trainer.advance

        def advance_and_flush() -> AdvanceResult:
            result = advance()
            log.flush_full_segments()
            return result

        trainer.advance = advance_and_flush  # type: ignore[method-assign]
        try:
            yield trainer
        finally:
            trainer.close()
            writer.close()


def _time_steps(trainer: Any, first: int, last: int) -> float:
    while trainer.counters.steps < first:
        trainer.advance()
    start_s = perf_counter()
    while trainer.counters.steps < last:
        trainer.advance()
    return perf_counter() - start_s


def measure_kills(*, task: str = ROBOT, seconds: float = 60.0) -> tuple[float, float]:
    """Kill one of four actors every 5 s; return the survivors' share and the slowest recovery in seconds.

    The share is the number of steps per second and living actor, divided by the same without kills.
    """
    config = make_config(task, actors=4, chunk_steps=20)
    with connect(None, cpus=6), open_actor_pool(config) as (pool, weights):
        undisturbed_rate = sum(watch_deliveries(pool, weights, config, seconds=seconds).compute_rates())
        delivered, kills, dead_s = 0, 0, 0.0
        killed_s: dict[int, float] = {}
        recovery_s: list[float] = []
        start_s = last_s = monotonic()
        while monotonic() - start_s < seconds:
            pool.request_chunks(weights, step=0, max_steps=MANY, chunk_steps=config.scale.chunk_steps)
            for event in pool.poll(wait_s=0.05):
                if isinstance(event, ActorLost):
                    killed_s.setdefault(event.actor, last_s)  # killed again before recovery: one outage
                    continue
                delivered += 0 if event.result.rejection else config.scale.chunk_steps
                if event.actor in killed_s:
                    recovery_s.append(monotonic() - killed_s.pop(event.actor))
                    dead_s += recovery_s[-1] - event.stats.seconds  # the actor was alive while it collected this chunk
            if monotonic() - last_s >= KILL_EVERY_S:
                living = [pid for pid, name in find_descendants(os.getpid()).items() if BUSY_ACTOR_NAME in name]
                os.kill(living[kills % len(living)], signal.SIGKILL)
                last_s, kills = monotonic(), kills + 1
        dead_s += sum(monotonic() - since_s for since_s in killed_s.values())
    if not recovery_s:
        raise SystemExit(f"no actor recovered after {kills} kills in {seconds:g} s")
    share = delivered / seconds / (undisturbed_rate * (1 - dead_s / (4 * seconds)))
    print(
        f"{kills} kills in {seconds:g} s: {100 * share:.0f} % of the survivors' share (bar 90), first chunk of "
        f"{config.scale.chunk_steps} steps {median(recovery_s):.1f} s after a kill, max {max(recovery_s):.1f} (bar 5)"
    )
    return share, max(recovery_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["collecting", "chunks", "waiting", "overhead", "killing"])
    parser.add_argument("--task")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    if args.what == "collecting":
        measure_collecting(task=args.task or RENDERED, seconds=args.seconds, rounds=args.rounds)
    elif args.what == "chunks":
        measure_chunk_sizes(seconds=args.seconds)
    elif args.what == "waiting":
        measure_waiting(updates=2_000)
    elif args.what == "overhead":
        measure_overhead(steps=1_000)
    else:
        measure_kills(task=args.task or ROBOT, seconds=2 * args.seconds)


if __name__ == "__main__":
    main()
