"""A crowd of light actors against the replay: each sends one recorded chunk again and again, at ten steps a second.

    python -m benchmarks.crowd [--actors 1000] [--shards 2] [--minutes 3] [--task dmc/ball_in_cup_catch]

They are real senders of the real shards in processes of Ray's, a few hundred in each; only their worlds are recorded.
Shards write their logs, and somebody draws batches all the while, as a learner would.
Each waits for its receipt before it sends the next chunk, as real actors do, so what the shards cannot take is not
sent: the crowd falls behind its ten steps a second, and nothing piles up. A line every ten seconds.
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
from manyview.train import RunConfig, factory

HERTZ = 10.0
SENDERS = 2
"""Processes that the crowd lives in."""
LOOK_EVERY_S = 10.0
CAPACITY = 100_000


class Crowd:
    """Every so manyth actor of a crowd, from the `first` on."""

    def __init__(self, parcel: Chunk, shards: list[Any], *, first: int, every: int, actors: int) -> None:
        self._parcel, self._shards, self._actors = parcel, shards, range(first, actors, every)

    def send(self, seconds: float, chunk_steps: int) -> tuple[int, int, float]:
        """Chunks that were taken and refused, and how long the slowest waited for its receipt."""
        period_s, began_s = chunk_steps / HERTZ, monotonic()
        due = [(began_s + period_s * place / len(self._actors), actor, 0) for place, actor in enumerate(self._actors)]
        waiting: dict[Any, tuple[float, int, int]] = {}
        taken = refused = 0
        slowest_s = 0.0
        while (now_s := monotonic()) < began_s + seconds or waiting:
            while due and due[0][0] <= now_s < began_s + seconds:
                _, actor, number = heappop(due)
                secret = sign_incarnation(KEY, actor, self._parcel.incarnation)
                parcel = self._parcel._replace(actor=actor, sequence_number=number, secret=secret)
                waiting[self._shards[actor % len(self._shards)].insert.remote(parcel)] = (now_s, actor, number)
            answered, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0.02) if waiting else ([], [])
            for answer in answered:
                sent_s, actor, number = waiting.pop(answer)
                refusal = ray.get(answer).rejection
                taken, refused = taken + (not refusal), refused + bool(refusal)
                slowest_s = max(slowest_s, monotonic() - sent_s)
                heappush(due, (max(sent_s + period_s, monotonic()), actor, number + 1))
            if not answered:
                sleep(0.005)
        return taken, refused, slowest_s


def record_chunk(config: RunConfig, shapes: Any) -> Chunk:
    collector = ChunkCollector(config, shapes, actor=0, incarnation=0)
    weights = get_policy_weights(factory.build_agent(config, shapes))
    parcel, _ = collector.collect(weights, step=0, steps=config.scale.chunk_steps)
    collector.close()
    return parcel


def sum_private_mb(name: str) -> float:
    """By all processes below this one that are called so."""
    return sum(read_private_mb(pid) for pid, called in find_descendants(os.getpid()).items() if name in called)


def run_crowd(task: str, *, actors: int, shards: int, minutes: float, chunk_steps: int) -> None:
    config = make_config(task, actors=actors, chunk_steps=chunk_steps, replay={"capacity": CAPACITY})
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    parcel = record_chunk(config, shapes)
    size_kb, steps_a_second = len(parcel.payload) / 1024, actors * HERTZ
    print(
        f"{actors} actors at {HERTZ:g} steps a second in chunks of {chunk_steps} ({size_kb:.0f} kB), {shards} shards: "
        f"{steps_a_second:,.0f} steps and {steps_a_second / chunk_steps * size_kb / 1024:.1f} MB a second"
    )
    with TemporaryDirectory() as folder, connect(None, cpus=SENDERS + 1):  # shards write until they end
        remote: Any = ray.remote(ReplayShard).options(num_cpus=0)
        holding = [remote.remote(config, shapes, index=index, count=shards, key=KEY) for index in range(shards)]
        ray.get([shard.open_log.remote(Path(folder), marker=Path(folder)) for shard in holding])
        ray.get([shard.set_senders.remote(actors // shards) for shard in holding])
        senders: list[Any] = [
            ray.remote(Crowd).options(num_cpus=0).remote(parcel, holding, first=first, every=SENDERS, actors=actors)
            for first in range(SENDERS)
        ]
        sending = [sender.send.remote(60 * minutes, chunk_steps) for sender in senders]
        began_s = looked_s = monotonic()
        before = batches = 0
        while not ray.wait(sending, num_returns=SENDERS, timeout=0)[0]:
            if before:
                ray.get([shard.sample.remote() for shard in holding])
                batches += 1
            else:
                sleep(1.0)
            if monotonic() - looked_s < LOOK_EVERY_S:
                continue
            states = ray.get([shard.get_state.remote() for shard in holding])
            taken, now_s = sum(state["senders"]["transitions"] for state in states), monotonic()
            print(
                f"  {now_s - began_s:5.0f} s: {(taken - before) / (now_s - looked_s):8,.0f} steps a second, "
                f"{batches} batches so far, shards {sum_private_mb('Shard'):.0f} MB, crowd {sum_private_mb('Crowd'):.0f} MB",
                flush=True,
            )
            before, looked_s = taken, now_s
        found = ray.get(sending)
    taken, refused, slowest_s = sum(one[0] for one in found), sum(one[1] for one in found), max(one[2] for one in found)
    rate = taken * chunk_steps / (60 * minutes)
    print(
        f"{rate:,.0f} of {steps_a_second:,.0f} steps a second taken, {refused} chunks refused, slowest receipt "
        f"{slowest_s:.2f} s"
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
