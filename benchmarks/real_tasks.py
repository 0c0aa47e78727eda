"""Real tasks from pixels, by the command a user would type: every run of a comparison, one after the other.

    python -m benchmarks.real_tasks dmc                # what is not kept yet; two at a time with --workers 2
    python -m benchmarks.real_tasks procgen --list     # what there is and what is missing
    python -m benchmarks.real_tasks random             # 1,000 episodes of each game with random actions

A run trains in `runs/` and, when it has finished, keeps its config, manifest and records under `results/dmc_cpu` or
`results/procgen_cpu`; of a game also what its last policy gets in 100 episodes on training levels and on all levels.
Stopped at any moment, the command goes on with the runs that are missing, each from where it was. Seeds were fixed
beforehand; all are kept.
"""

import argparse
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np

from manyview.envs import make_vector
from manyview.envs.many import episodes_ended
from manyview.train.folder import RunFolder

KEPT, WORK = Path("results"), Path("runs")
FILES = ("config.json", "manifest.json", "metrics.jsonl")
SEEDS = (1, 2, 3)
EPISODES, RANDOM_EPISODES = 100, 1_000
LEVELS = ("train", "test")
RANDOM = KEPT / "procgen_cpu" / "random.json"
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
        if task.startswith("procgen"):
            for levels in LEVELS:
                (KEPT / where / played_on(levels)).write_text(evaluated(WORK / where, levels))
        for name in FILES:  # the records last: with them it is kept
            shutil.copy(WORK / where / name, KEPT / where / name)


def played_on(levels: str) -> str:
    """The file with what the last policy of a run got there."""
    return f"{levels}.json"


def evaluated(run: Path, levels: str) -> str:
    arguments = ["evaluate", str(run), "--levels", levels, "--episodes", str(EPISODES), "--json"]
    ended = subprocess.run([sys.executable, "-m", "manyview", *arguments], capture_output=True, text=True, check=True)
    return ended.stdout


def play_at_random() -> None:
    """The returns of whoever knows nothing, on training levels. The first episodes to end are the short ones, so each
    of many games plays as many of them.
    """
    each, envs, found = 10, RANDOM_EPISODES // 10, dict[str, list[float]]()
    for task in sorted({task for task, _ in CELLS["procgen"]}):
        games = make_vector(task, envs)
        rng, left, returns = np.random.default_rng(1), np.full(envs, each), list[float]()
        games.reset(seed=1)
        while left.any():
            _, _, terminated, truncated, info = games.step(rng.integers(0, 15, envs))
            for place, episode in zip(np.flatnonzero(terminated | truncated), episodes_ended(info), strict=True):
                if left[place]:
                    left[place] -= 1
                    returns.append(episode["return"])
        games.close()
        found[task] = returns
        print(f"{task}: {np.mean(returns):.2f} in {len(returns)} episodes", flush=True)
    RANDOM.write_text(json.dumps(found) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=[*CELLS, "random"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.suite == "random":
        play_at_random()
        return
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
