"""Train for an hour in one process with failing physics and cameras, and measure resource growth and slowdown.

    python -m benchmarks.soak                       # one hour; a JSON line per minute in results/soak.jsonl
    python -m benchmarks.soak --minutes 5 --out soak.jsonl

The run has tiny images and networks, a replay buffer that wraps every few minutes, and frequent checkpoints and
evaluations. Speed is CPU time relative to a fixed workload that alternates with training, so that other load on the
machine affects both.
"""

import argparse
import gc
import json
import os
import tempfile
import threading
import warnings
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from manyview.config.overrides import apply_overrides, merge_overrides
from manyview.envs import ViewWarning
from manyview.envs.dmc.env import DeepMindControl
from manyview.envs.rendering.mujoco import _GLRenderer
from manyview.training import RunConfig, RunDir, load_preset
from manyview.training.runner import Runner

SAMPLE_S = 60.0
WARM_UP = 0.2
"""Share of the time in which rings, caches and pools fill."""
STEPS_AT_ONCE = 50
BARS = {"MB an hour": 1.0, "descriptors": 0.0, "threads": 0.0, "speed drift": 0.02}


class Breakage:
    """Physics error once per thousand steps, and camera failure once per hundred images."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.physics_errors = 0
        render, step_simulation = _GLRenderer.render, DeepMindControl.step_simulation

        def render_or_fail(renderer: _GLRenderer, model: Any, data: Any, camera: Any, shape: Any) -> Any:
            if camera == "side" and rng.random() < 0.01:
                raise RuntimeError("the cable is out")
            return render(renderer, model, data, camera, shape)

        def step_or_fail(env: DeepMindControl, action: Any) -> Any:
            if rng.random() < 1e-3:
                self.physics_errors += 1
                env._env.physics.data.qvel[0] = np.inf
            return step_simulation(env, action)

        self.patches = [(_GLRenderer, "render", render_or_fail), (DeepMindControl, "step_simulation", step_or_fail)]
        """Arguments of `setattr`: object, attribute name, replacement."""


@cache
def install_breakage(seed: int | None = None) -> None:
    """Install the faults once per process, for all its environments."""
    warnings.simplefilter("ignore", ViewWarning)
    for patch in Breakage(np.random.default_rng(seed)).patches:
        setattr(*patch)


def make_endless_config(task: str, **changes: Any) -> RunConfig:
    """Return the config of an endless run in which every part runs every few minutes."""
    settings = {
        "schedule": {"frames": 10**9, "update_every_steps": 2},
        "replay": {"capacity": 3_000, "batch_size": 16},
        "evaluation": {"every_frames": 40_000, "episodes": 1, "video": False},
        "logging": {"checkpoint_every_frames": 4_000, "every_steps": 200, "tensorboard": False},
        "agent": {"hidden": 32},
        "representation": {"latent_dim": 8},
    }
    config = load_preset("minute", task=task, method="drqv2+mem", seed=1)
    return apply_overrides(config, merge_overrides(settings, changes))


def make_runner(path: Path) -> Runner:
    return Runner(make_endless_config("dmc/cheetah_run"), RunDir(path))


def run_fixed_work() -> None:
    """Run a workload similar to training: small operations and some convolutions."""
    images, weights = torch.ones(32, 6, 24, 24), torch.ones(16, 6, 3, 3)
    for _ in range(60):
        torch.relu(torch.nn.functional.conv2d(images, weights)).sum().item()


def measure_minute(runner: Runner, start_s: float) -> dict[str, float]:
    """Train for a minute in alternation with the fixed work; return speed and the resources in use."""
    ours, fixed, rounds = 0.0, 0.0, 0
    ends = perf_counter() + SAMPLE_S
    while perf_counter() < ends:
        before = process_time()
        for _ in range(STEPS_AT_ONCE):
            runner.advance()
        between = process_time()
        run_fixed_work()
        ours, fixed, rounds = ours + between - before, fixed + process_time() - between, rounds + 1
    runner.writer.wait()
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    counts = runner.trainer.counters
    return {
        "minute": round((perf_counter() - start_s) / 60, 2),
        "steps": counts.steps,
        "episodes": counts.episodes,
        "resident MB": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "rounds": rounds,
        "CPU against fixed work": ours / fixed,
    }


def summarize_drift(samples: list[dict[str, float]]) -> dict[str, float]:
    """Return the drift of each figure after the warm-up.

    The slope of memory is the median over all pairs of samples (Theil and Sen): an allocator sometimes takes a whole
    arena, and a single step is no slope. The total growth is included too.
    """
    later = samples[int(WARM_UP * len(samples)) :]
    minutes, resident = ([entry[name] for entry in later] for name in ("minute", "resident MB"))
    pairs = combinations(zip(minutes, resident, strict=True), 2)
    half = len(later) // 2

    def compute_medians(name: str) -> tuple[float, float]:
        """Return the median of each half: a process being replaced has a descriptor or thread more or less."""
        figures = [entry[name] for entry in later]
        return median(figures[:half]), median(figures[half:])

    (few, many), (less, more), (fast, slow) = map(compute_medians, ("descriptors", "threads", "CPU against fixed work"))
    return {
        "MB an hour": 60 * median((mb - before) / (minute - earlier) for (earlier, before), (minute, mb) in pairs),
        "MB in all": resident[-1] - resident[0],
        "descriptors": many - few,
        "threads": more - less,
        "speed drift": slow / fast - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, default=Path("results/soak.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    install_breakage(seed=0)
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as directory, arguments.out.open("w") as out:
        runner = make_runner(Path(directory) / "run")
        start_s = perf_counter()
        while perf_counter() - start_s < 60 * arguments.minutes:
            samples.append(measure_minute(runner, start_s))
            out.write(json.dumps(samples[-1]) + "\n")
            out.flush()
            print(samples[-1], flush=True)
        runner.close()
        drift = summarize_drift(samples)
        out.write(json.dumps({"verdict": drift, "manifest": dict(runner.manifest)}) + "\n")
    for name, value in drift.items():
        print(f"{name}: {value:.3g}" + (f" (bar {BARS[name]:g})" if name in BARS else ""))


if __name__ == "__main__":
    main()
