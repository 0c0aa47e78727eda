"""Train for an hour with actors that are killed and hang, and measure resource growth and slowdown.

    python -m benchmarks.soak_actors                # one hour; a JSON line per minute in results/soak_actors.jsonl
    python -m benchmarks.soak_actors --minutes 5 --out soak.jsonl

The run has four actors and two shards on Ray. Every ten seconds an actor is killed; every third time it is stopped
instead, so that it hangs until its deadline. All actors have failing physics and a failing camera, as in
`benchmarks.soak`. The learner and the shards must survive and meet the bars; Ray's two servers are only reported.
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
from manyview.training import RunDir
from manyview.training.runner import Runner

FAULT_EVERY_S = 10.0
HANGS_EVERY = 3
TASK = "benchmarks.soak_actors:make_breaking_env"
SCALE = {"actors": 4, "replay_shards": 2, "chunk_steps": 50, "deadline_s": 5.0}
PROCESS_GROUPS = {"shards": "ray::ReplayShard", "raylet": "raylet/raylet", "gcs": "gcs_server"}


def make_breaking_env() -> gym.Env[Any, Any]:
    install_breakage()
    return manyview.make("dmc/cheetah_run", image_size=24, frame_stack=1, action_repeat=8, render_quality="fast")


class FaultInjector(Thread):
    """Thread that kills or stops one actor at a time until `over` is set."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over, self.kills, self.hangs = Event(), 0, 0

    def run(self) -> None:
        rng = np.random.default_rng(0)
        for turn in count(1):
            if self.over.wait(FAULT_EVERY_S):
                return
            actors = sorted(pid for pid, name in find_descendants(os.getpid()).items() if BUSY_ACTOR_NAME in name)
            hang = turn % HANGS_EVERY == 0
            if actors:
                with suppress(ProcessLookupError):
                    os.kill(int(rng.choice(actors)), signal.SIGSTOP if hang else signal.SIGKILL)
                    self.hangs, self.kills = self.hangs + hang, self.kills + (not hang)


def measure_ray_processes() -> dict[str, float]:
    """Return private memory, threads and descriptors of Ray's processes by group."""
    figures: dict[str, float] = {}
    descendants = find_descendants(os.getpid())
    for group, name in PROCESS_GROUPS.items():
        pids = [pid for pid, process in descendants.items() if name in process]
        figures[f"{group} MB"] = sum(map(read_private_mb, pids))
        figures[f"{group} threads"] = sum(read_status_field(pid, "Threads") for pid in pids)
        figures[f"{group} descriptors"] = sum(map(count_descriptors, pids))
    return figures


def summarize_group(group: str, samples: list[dict[str, Any]]) -> dict[str, float]:
    """Return the drift of a process group, without speed: only the learner's is measured."""
    names = {"resident MB": f"{group} MB", "descriptors": f"{group} descriptors", "threads": f"{group} threads"}
    drift = summarize_drift([{**entry, **{name: entry[key] for name, key in names.items()}} for entry in samples])
    drift.pop("speed drift")
    return drift


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, default=Path("results/soak_actors.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config, samples, injector = make_endless_config(TASK, scale=SCALE), list[dict[str, Any]](), FaultInjector()
    with (
        tempfile.TemporaryDirectory() as directory,
        arguments.out.open("w") as out,
        connect(None, cpus=count_cpus(config, spares=1)),
    ):
        from manyview.scale.trainer import ActorLearnerTrainer

        runner = Runner(config, RunDir(Path(directory) / "run"), build_trainer=ActorLearnerTrainer)
        injector.start()
        start_s = perf_counter()
        while perf_counter() - start_s < 60 * arguments.minutes:
            updates = runner.trainer.counters.updates
            entry = {**measure_minute(runner, start_s), **measure_ray_processes()}
            entry["threads"] = read_status_field(os.getpid(), "Threads")  # Ray's too
            entry |= {
                "updates": runner.trainer.counters.updates - updates,
                "kills": injector.kills,
                "hangs": injector.hangs,
            }
            # CPU time per update: polling the actors is no work.
            entry["CPU against fixed work"] *= entry["rounds"] / max(1, entry["updates"])
            samples.append(entry)
            out.write(json.dumps(entry) + "\n")
            out.flush()
            print(entry, flush=True)
        injector.over.set()
        counters = runner.trainer.counters
        runner.close()
        drifts = {
            "learner": summarize_drift(samples),
            **{group: summarize_group(group, samples) for group in PROCESS_GROUPS},
        }
        ratio = counters.updates * config.schedule.update_every_steps / (counters.steps - config.schedule.seed_frames)
        last = {"verdict": drifts, "updates asked for": ratio, "manifest": dict(runner.manifest)}
        out.write(json.dumps(last) + "\n")
    for group, figures in drifts.items():
        for name, value in figures.items():
            has_bar = name in BARS and group in ("learner", "shards")
            print(f"{group}, {name}: {value:.3g}" + (f" (bar {BARS[name]:g})" if has_bar else ""))
    print(f"{injector.kills} kills, {injector.hangs} hangs; updates made over updates due: {ratio:.4f} (bar 1 %)")


if __name__ == "__main__":
    main()
