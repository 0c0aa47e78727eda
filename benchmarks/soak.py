"""An hour of training in one process, with physics that breaks and cameras that fail: what grows, and what slows down?

    python -m benchmarks.soak                       # one hour; a JSON line a minute into results/soak.jsonl
    python -m benchmarks.soak --minutes 5 --out soak.jsonl

Tiny pictures and networks, a replay that wraps every few minutes, checkpoints and evaluations all the time. Speed is
CPU time against that of a fixed piece of work done in turns with it, so that what else the machine does counts on both
sides.
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
from manyview.train import RunConfig, RunDir, load_preset
from manyview.train.runner import Runner

SAMPLE_S = 60.0
WARM_UP = 0.2
"""Of the time: rings, caches and pools fill."""
STEPS_AT_ONCE = 50
BARS = {"MB an hour": 1.0, "descriptors": 0.0, "threads": 0.0, "speed drift": 0.02}


class Breakage:
    """Physics that breaks once in a thousand steps, and a camera that fails once in a hundred pictures."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.physics_errors = 0
        paint, play = _GLRenderer.render, DeepMindControl.step_simulation

        def failing_camera(painter: _GLRenderer, model: Any, data: Any, camera: Any, shape: Any) -> Any:
            if camera == "side" and rng.random() < 0.01:
                raise RuntimeError("the cable is out")
            return paint(painter, model, data, camera, shape)

        def failing_physics(env: DeepMindControl, action: Any) -> Any:
            if rng.random() < 1e-3:
                self.physics_errors += 1
                env._env.physics.data.qvel[0] = np.inf
            return play(env, action)

        self.patches = [(_GLRenderer, "render", failing_camera), (DeepMindControl, "step_simulation", failing_physics)]
        """What stands for what, for `setattr`."""


@cache
def install_breakage(seed: int | None = None) -> None:
    """Once in a process, whatever is made in it."""
    warnings.simplefilter("ignore", ViewWarning)
    for replaced in Breakage(np.random.default_rng(seed)).patches:
        setattr(*replaced)


def make_endless_config(task: str, **changes: Any) -> RunConfig:
    """A run that never ends, of which every part comes round every few minutes."""
    settings = {
        "schedule": {"frames": 10**9, "update_every_steps": 2},
        "replay": {"capacity": 3_000, "batch_size": 16},
        "evaluation": {"every_frames": 40_000, "episodes": 1, "video": False},
        "log": {"checkpoint_every_frames": 4_000, "every_steps": 200, "tensorboard": False},
        "drqv2": {"hidden": 32},
        "mem": {"latent_dim": 8},
    }
    config = load_preset("minute", task=task, method="drqv2+mem", seed=1)
    return apply_overrides(config, merge_overrides(settings, changes))


def make_runner(folder: Path) -> Runner:
    return Runner(make_endless_config("dmc/cheetah_run"), RunDir(folder))


def run_fixed_work() -> None:
    """Of the same kind as training: small operations, some convolutions."""
    pictures, weights = torch.ones(32, 6, 24, 24), torch.ones(16, 6, 3, 3)
    for _ in range(60):
        torch.relu(torch.nn.functional.conv2d(pictures, weights)).sum().item()


def measure_minute(session: Runner, began: float) -> dict[str, float]:
    """A minute of training in turns with the fixed work, and what the process holds after it."""
    ours, fixed, rounds = 0.0, 0.0, 0
    ends = perf_counter() + SAMPLE_S
    while perf_counter() < ends:
        before = process_time()
        for _ in range(STEPS_AT_ONCE):
            session.advance()
        between = process_time()
        run_fixed_work()
        ours, fixed, rounds = ours + between - before, fixed + process_time() - between, rounds + 1
    session.writer.wait()
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    counts = session.trainer.counters
    return {
        "minute": round((perf_counter() - began) / 60, 2),
        "steps": counts.steps,
        "episodes": counts.episodes,
        "resident MB": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "rounds": rounds,
        "CPU against fixed work": ours / fixed,
    }


def summarize_drift(samples: list[dict[str, float]]) -> dict[str, float]:
    """How much each figure moved after the warm-up.

    The slope of memory is the median over all pairs of samples (Theil and Sen): an allocator takes a whole arena now
    and then, and one such step is no slope. How much it rose in all is said too.
    """
    later = samples[int(WARM_UP * len(samples)) :]
    minutes, held = ([one[name] for one in later] for name in ("minute", "resident MB"))
    pairs = combinations(zip(minutes, held, strict=True), 2)
    half = len(later) // 2

    def halves(name: str) -> tuple[float, float]:
        """Medians: who is just being replaced has a descriptor or a thread more or less."""
        figures = [one[name] for one in later]
        return median(figures[:half]), median(figures[half:])

    (few, many), (less, more), (fast, slow) = map(halves, ("descriptors", "threads", "CPU against fixed work"))
    return {
        "MB an hour": 60 * median((mb - before) / (minute - earlier) for (earlier, before), (minute, mb) in pairs),
        "MB in all": held[-1] - held[0],
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
    with tempfile.TemporaryDirectory() as place, arguments.out.open("w") as out:
        session = make_runner(Path(place) / "run")
        began = perf_counter()
        while perf_counter() - began < 60 * arguments.minutes:
            samples.append(measure_minute(session, began))
            out.write(json.dumps(samples[-1]) + "\n")
            out.flush()
            print(samples[-1], flush=True)
        session.close()
        found = summarize_drift(samples)
        out.write(json.dumps({"verdict": found, "manifest": dict(session.manifest)}) + "\n")
    for name, value in found.items():
        print(f"{name}: {value:.3g}" + (f" (bar {BARS[name]:g})" if name in BARS else ""))


if __name__ == "__main__":
    main()
