"""An hour of training with actors that are killed and that hang: what grows, and what slows down?

    python -m benchmarks.soak_actors                # one hour; a JSON line a minute into results/soak_actors.jsonl
    python -m benchmarks.soak_actors --minutes 5 --out soak.jsonl

Four actors and two shards on Ray. Every ten seconds an actor is killed, and every third time it is stopped instead, so
that it hangs until its deadline; in all of them physics breaks and a camera fails, as in `benchmarks.soak`. Watched are
the learner and the shards, which must live through all of it; Ray's own two servers are told beside them.
"""

import argparse
import json
import os
import signal
import tempfile
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import manyview
from benchmarks.processes import (
    BUSY_ACTOR_NAME,
    count_descriptors,
    find_descendants,
    read_private_mb,
    read_status_field,
)
from benchmarks.soak import BARS, install_breakage, make_endless_config, measure_minute, summarize_drift
from manyview.scale.cluster import connect, count_cpus
from manyview.train import RunDir
from manyview.train.runner import Runner

TROUBLE_EVERY_S = 10.0
HANGS_EVERY = 3
TASK = "benchmarks.soak_actors:make_breaking_env"
SCALE = {"actors": 4, "replay_shards": 2, "chunk_steps": 50, "deadline_s": 5.0}
PROCESS_GROUPS = {"shards": "ray::ReplayShard", "raylet": "raylet/raylet", "gcs": "gcs_server"}


def make_breaking_env() -> gym.Env[Any, Any]:
    install_breakage()
    return manyview.make("dmc/cheetah_run", image_size=24, frame_stack=1, action_repeat=8, render_quality="fast")


class FaultInjector(Thread):
    """Kills and stops actors, one at a time, until it is over."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over, self.kills, self.hangs = Event(), 0, 0

    def run(self) -> None:
        rng = np.random.default_rng(0)
        for turn in count(1):
            if self.over.wait(TROUBLE_EVERY_S):
                return
            actors = sorted(pid for pid, name in find_descendants(os.getpid()).items() if BUSY_ACTOR_NAME in name)
            hang = turn % HANGS_EVERY == 0
            if actors:
                with suppress(ProcessLookupError):
                    os.kill(int(rng.choice(actors)), signal.SIGSTOP if hang else signal.SIGKILL)
                    self.hangs, self.kills = self.hangs + hang, self.kills + (not hang)


def measure_ray_processes() -> dict[str, float]:
    """Memory of their own and descriptors of processes of Ray's."""
    found: dict[str, float] = {}
    family = find_descendants(os.getpid())
    for who, name in PROCESS_GROUPS.items():
        pids = [pid for pid, called in family.items() if name in called]
        found[f"{who} MB"] = sum(map(read_private_mb, pids))
        found[f"{who} threads"] = sum(read_status_field(pid, "Threads") for pid in pids)
        found[f"{who} descriptors"] = sum(map(count_descriptors, pids))
    return found


def summarize_group(who: str, samples: list[dict[str, Any]]) -> dict[str, float]:
    """As if they were the process that is watched; of speed only the learner's is known."""
    names = {"resident MB": f"{who} MB", "descriptors": f"{who} descriptors", "threads": f"{who} threads"}
    found = summarize_drift([{**one, **{name: one[theirs] for name, theirs in names.items()}} for one in samples])
    found.pop("speed drift")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, default=Path("results/soak_actors.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config, samples, trouble = make_endless_config(TASK, scale=SCALE), list[dict[str, Any]](), FaultInjector()
    with (
        tempfile.TemporaryDirectory() as place,
        arguments.out.open("w") as out,
        connect(None, cpus=count_cpus(config, spares=1)),
    ):
        from manyview.scale.trainer import ActorLearnerTrainer

        session = Runner(config, RunDir(Path(place) / "run"), build_trainer=ActorLearnerTrainer)
        trouble.start()
        began = perf_counter()
        while perf_counter() - began < 60 * arguments.minutes:
            updates = session.trainer.counters.updates
            one = {**measure_minute(session, began), **measure_ray_processes()}
            one["threads"] = read_status_field(os.getpid(), "Threads")  # Ray's too
            one |= {
                "updates": session.trainer.counters.updates - updates,
                "kills": trouble.kills,
                "hangs": trouble.hangs,
            }
            # Of an update: looks at actors are no work.
            one["CPU against fixed work"] *= one["rounds"] / max(1, one["updates"])
            samples.append(one)
            out.write(json.dumps(one) + "\n")
            out.flush()
            print(one, flush=True)
        trouble.over.set()
        clock = session.trainer.counters
        session.close()
        found = {"learner": summarize_drift(samples), **{who: summarize_group(who, samples) for who in PROCESS_GROUPS}}
        ratio = clock.updates * config.schedule.update_every_steps / (clock.steps - config.schedule.seed_frames)
        last = {"verdict": found, "updates asked for": ratio, "manifest": dict(session.manifest)}
        out.write(json.dumps(last) + "\n")
    for who, figures in found.items():
        for name, value in figures.items():
            barred = name in BARS and who in ("learner", "shards")
            print(f"{who}, {name}: {value:.3g}" + (f" (bar {BARS[name]:g})" if barred else ""))
    print(f"{trouble.kills} kills, {trouble.hangs} hangs; updates made of those asked for: {ratio:.4f} (bar 1 %)")


if __name__ == "__main__":
    main()
