"""Load the replay shards with many light actors, each of which resends one recorded chunk at ten steps per second.

    python -m benchmarks.crowd [--actors 1000] [--shards 2] [--minutes 3] [--task dmc/ball_in_cup_catch]

Senders and shards are the real ones, in Ray processes with a few hundred senders each; only the chunk is recorded.
Shards write their logs, and batches are drawn meanwhile, as by a learner.
Each sender waits for its receipt before it sends the next chunk, as real actors do. If the shards are too slow, the
crowd falls behind its ten steps per second, and no queue grows. The benchmark prints a line every ten seconds.
"""

import argparse
import os
from heapq import heappop, heappush
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import ray

from benchmarks.actors import KEY, make_config
from benchmarks.processes import find_descendants, read_private_mb
from manyview.scale.chunk_collector import ChunkCollector, get_policy_weights
from manyview.scale.cluster import connect
from manyview.scale.replay_shard import Chunk, ReplayShard, sign_incarnation
from manyview.training import RunConfig, factory

HERTZ = 10.0
SENDERS = 2
"""Number of processes that the crowd is split over."""
REPORT_EVERY_S = 10.0
CAPACITY = 100_000


class Crowd:
    """Every `every`-th actor of a crowd, starting with `first`."""

    def __init__(self, chunk: Chunk, shards: list[Any], *, first: int, every: int, actors: int) -> None:
        self._chunk, self._shards, self._actors = chunk, shards, range(first, actors, every)

    def send(self, seconds: float, chunk_steps: int) -> tuple[int, int, float]:
        """Send chunks for `seconds`; return the numbers accepted and rejected, and the slowest receipt in seconds."""
        period_s, start_s = chunk_steps / HERTZ, monotonic()
        due = [(start_s + period_s * place / len(self._actors), actor, 0) for place, actor in enumerate(self._actors)]
        waiting: dict[Any, tuple[float, int, int]] = {}
        accepted = rejected = 0
        slowest_s = 0.0
        while (now_s := monotonic()) < start_s + seconds or waiting:
            while due and due[0][0] <= now_s < start_s + seconds:
                _, actor, number = heappop(due)
                secret = sign_incarnation(KEY, actor, self._chunk.incarnation)
                chunk = self._chunk._replace(actor=actor, sequence_number=number, secret=secret)
                waiting[self._shards[actor % len(self._shards)].insert.remote(chunk)] = (now_s, actor, number)
            answered, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0.02) if waiting else ([], [])
            for answer in answered:
                sent_s, actor, number = waiting.pop(answer)
                rejection = ray.get(answer).rejection
                accepted, rejected = accepted + (not rejection), rejected + bool(rejection)
                slowest_s = max(slowest_s, monotonic() - sent_s)
                heappush(due, (max(sent_s + period_s, monotonic()), actor, number + 1))
            if not answered:
                sleep(0.005)
        return accepted, rejected, slowest_s


def record_chunk(config: RunConfig, shapes: Any) -> Chunk:
    """Collect one chunk with a new policy."""
    collector = ChunkCollector(config, shapes, actor=0, incarnation=0)
    weights = get_policy_weights(factory.build_agent(config, shapes))
    chunk, _ = collector.collect(weights, step=0, steps=config.scale.chunk_steps)
    collector.close()
    return chunk


def sum_private_mb(name: str) -> float:
    """Return the private memory in MB of all descendants whose process name contains `name`."""
    return sum(read_private_mb(pid) for pid, process in find_descendants(os.getpid()).items() if name in process)


def run_crowd(task: str, *, actors: int, shards: int, minutes: float, chunk_steps: int) -> None:
    config = make_config(task, actors=actors, chunk_steps=chunk_steps, replay={"capacity": CAPACITY})
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    chunk = record_chunk(config, shapes)
    size_kb, target_rate = len(chunk.payload) / 1024, actors * HERTZ
    print(
        f"{actors} actors at {HERTZ:g} steps/s in chunks of {chunk_steps} ({size_kb:.0f} kB), {shards} shards: "
        f"{target_rate:,.0f} steps and {target_rate / chunk_steps * size_kb / 1024:.1f} MB per second"
    )
    with TemporaryDirectory() as directory, connect(None, cpus=SENDERS + 1):  # shards write until they end
        remote: Any = ray.remote(ReplayShard).options(num_cpus=0)
        shard_actors = [remote.remote(config, shapes, index=index, count=shards, key=KEY) for index in range(shards)]
        ray.get([shard.open_log.remote(Path(directory), marker=Path(directory)) for shard in shard_actors])
        ray.get([shard.set_senders.remote(actors // shards) for shard in shard_actors])
        senders: list[Any] = [
            ray.remote(Crowd).options(num_cpus=0).remote(chunk, shard_actors, first=first, every=SENDERS, actors=actors)
            for first in range(SENDERS)
        ]
        sending = [sender.send.remote(60 * minutes, chunk_steps) for sender in senders]
        start_s = reported_s = monotonic()
        before = batches = 0
        while not ray.wait(sending, num_returns=SENDERS, timeout=0)[0]:
            if before:
                ray.get([shard.sample.remote() for shard in shard_actors])
                batches += 1
            else:
                sleep(1.0)
            if monotonic() - reported_s < REPORT_EVERY_S:
                continue
            states = ray.get([shard.get_state.remote() for shard in shard_actors])
            inserted, now_s = sum(state["senders"]["transitions"] for state in states), monotonic()
            shards_mb, crowd_mb = sum_private_mb("Shard"), sum_private_mb("Crowd")
            print(
                f"  {now_s - start_s:5.0f} s: {(inserted - before) / (now_s - reported_s):8,.0f} steps per second, "
                f"{batches} batches so far, shards {shards_mb:.0f} MB, crowd {crowd_mb:.0f} MB",
                flush=True,
            )
            before, reported_s = inserted, now_s
        accepted, rejected, slowest_s = zip(*ray.get(sending), strict=True)
    rate = sum(accepted) * chunk_steps / (60 * minutes)
    print(
        f"{rate:,.0f} of {target_rate:,.0f} steps per second accepted, {sum(rejected)} chunks rejected, slowest "
        f"receipt {max(slowest_s):.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=1_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--chunk-steps", type=int, default=200)
    parser.add_argument("--task", default="dmc/ball_in_cup_catch")
    args = parser.parse_args()
    run_crowd(args.task, actors=args.actors, shards=args.shards, minutes=args.minutes, chunk_steps=args.chunk_steps)


if __name__ == "__main__":
    main()
