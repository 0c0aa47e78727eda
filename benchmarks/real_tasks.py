"""Real tasks from pixels, by the command a user would type: every run of a comparison, one after the other.

    python -m benchmarks.real_tasks dmc                # what is not kept yet; two at a time with --workers 2
    python -m benchmarks.real_tasks procgen --list     # what there is and what is missing

A run trains in `runs/` and, when it has finished, keeps its config, manifest and records under `results/dmc_cpu` or
`results/procgen_cpu`.
Stopped at any moment, the command goes on with the runs that are missing, each from where it was. Seeds were fixed
beforehand; all are kept.
"""

import argparse
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from manyview.train.folder import RunFolder

KEPT, WORK = Path("results"), Path("runs")
FILES = ("config.json", "manifest.json", "metrics.jsonl")
SEEDS = (1, 2, 3)
CELLS = {
    "dmc": (
        ("dmc/ball_in_cup_catch", "drqv2+mem"),
        ("dmc/pendulum_swingup", "drqv2+mem"),
        ("dmc/ball_in_cup_catch", "drqv2+none"),
        ("dmc/pendulum_swingup", "drqv2+none"),
        ("dmc/ball_in_cup_catch", "drqv2+re3"),
    ),
    "procgen": (
        ("procgen/starpilot", "ppo+mem"),
        ("procgen/starpilot", "ppo+none"),
        ("procgen/bigfish", "ppo+mem"),
        ("procgen/bigfish", "ppo+none"),
        ("procgen/bigfish", "ppo+re3"),
    ),
}


def place(task: str, method: str, seed: int) -> Path:
    suite, name = task.split("/")
    return Path(f"{suite}_cpu") / name / method / f"seed{seed}"


def train(task: str, method: str, seed: int) -> None:
    """One run, from its begin or from where it was; kept if it comes to its end."""
    where = place(task, method, seed)
    arguments = ["train", task, "--method", method, "--preset", "cpu", "--seed", str(seed), "--out", str(WORK / where)]
    log = WORK / where.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "manyview", *arguments], stdout=output, stderr=output, check=False
        )
    finished = ended.returncode == 0 and RunFolder(WORK / where).finished  # one that was asked to stop ends well too
    print(f"{where}: {'kept' if finished else f'not finished, see {log}'}", flush=True)
    if finished:
        (KEPT / where).mkdir(parents=True, exist_ok=True)
        for name in FILES:
            shutil.copy(WORK / where / name, KEPT / where / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=CELLS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    every = [(task, method, seed) for seed, (task, method) in product(SEEDS, CELLS[arguments.suite])]
    missing = [run for run in every if not (KEPT / place(*run) / FILES[-1]).exists()]
    if arguments.list:
        for run in every:
            print(f"{place(*run)}: {'missing' if run in missing else 'kept'}")
        return
    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(lambda run: train(*run), missing))


if __name__ == "__main__":
    main()
