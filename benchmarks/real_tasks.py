"""Real tasks from pixels, by the command a user would type: every run of a comparison, one after the other.

    python -m benchmarks.real_tasks dmc                # what is not kept yet; two at a time with --workers 2
    python -m benchmarks.real_tasks ablation           # what of MEM does what on Ball in Cup
    python -m benchmarks.real_tasks procgen --list     # what there is and what is missing
    python -m benchmarks.real_tasks procgen_changed    # where MEM's difference on Starpilot comes from
    python -m benchmarks.real_tasks random             # 1,000 episodes of each game with random actions

A run trains in `runs/` and, when it has finished, keeps its config, manifest and records under `results/` at the same
place; of a game also what its last policy gets in 100 episodes on training levels and on all levels. Stopped at any
moment, the command goes on with the runs that are missing, each from where it was. Seeds were fixed beforehand; all are
kept.
"""

import argparse
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from manyview.envs import make_vector
from manyview.envs.vector import extract_finished_episodes
from manyview.train.run_dir import RunDir

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

ABLATED, ABLATION_FRAMES, ABLATION_SEEDS = ("dmc/ball_in_cup_catch", "drqv2+mem"), 50_000, (1, 2)
ABLATION = {
    "no_bonus": ("bonus.beta0=0",),
    "beta0_0.2": ("bonus.beta0=0.2",),
    "lambdas_0": ("mem.diff_coef=0", "mem.con_coef=0", "mem.adv_coef=0"),
    "marginal": ("mem.entropy=marginal",),
    "literal_gradient": ("drqv2.critic_trains_encoder=false",),
}
"""What is changed of the preset. A shorter run is the beginning of a longer one: no schedule here ends with the run."""

CHANGED_GAMES = (
    ("ppo+none", "env.further_view=cutout", SEEDS),  # MEM's two views without MEM
    ("ppo+none", "ppo.discount=0.999", (1,)),  # as OpenAI's
)
"""What is changed on Starpilot."""


class Run(NamedTuple):
    where: Path
    """Below `runs/` while it trains, below `results/` when it is kept."""
    task: str
    method: str
    seed: int
    settings: tuple[str, ...] = ()


def compared(suite: str) -> list[Run]:
    """Of a comparison, by seed."""
    return [
        Run(Path(f"{suite}_cpu") / task.split("/")[1] / method / f"seed{seed}", task, method, seed)
        for seed, (task, method) in product(SEEDS, CELLS[suite])
    ]


def ablated() -> list[Run]:
    return [
        Run(Path("ablation") / name / f"seed{seed}", *ABLATED, seed, (*changed, f"schedule.frames={ABLATION_FRAMES}"))
        for seed, (name, changed) in product(ABLATION_SEEDS, ABLATION.items())
    ]


def changed_games() -> list[Run]:
    return [
        Run(Path("procgen_changed") / method / changed / f"seed{seed}", "procgen/starpilot", method, seed, (changed,))
        for method, changed, seeds in CHANGED_GAMES
        for seed in seeds
    ]


def train(run: Run) -> None:
    """From its beginning or from where it was; kept if it comes to its end."""
    work, kept, log = WORK / run.where, KEPT / run.where, WORK / run.where.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    names = ["--method", run.method, "--preset", "cpu", "--seed", str(run.seed), "--out", str(work)]
    settings = ["--set", *run.settings] if run.settings else []
    with log.open("a") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "manyview", "train", run.task, *names, *settings],
            stdout=output,
            stderr=output,
            check=False,
            timeout=7 * 24 * 3600,
        )
    finished = ended.returncode == 0 and RunDir(work).is_finished  # one that was asked to stop ends well too
    print(f"{run.where}: {'kept' if finished else f'not finished, see {log}'}", flush=True)
    if finished:
        kept.mkdir(parents=True, exist_ok=True)
        if run.task.startswith("procgen"):
            for levels in LEVELS:
                (kept / played_on(levels)).write_text(evaluated(work, levels))
        for name in FILES:  # the records last: with them it is kept
            shutil.copy(work / name, kept / name)


def played_on(levels: str) -> str:
    """The file with what the last policy of a run got there."""
    return f"{levels}.json"


def evaluated(run: Path, levels: str) -> str:
    arguments = ["evaluate", str(run), "--levels", levels, "--episodes", str(EPISODES), "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "manyview", *arguments], capture_output=True, text=True, check=True, timeout=24 * 3600
    )
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
            for place, episode in zip(
                np.flatnonzero(terminated | truncated), extract_finished_episodes(info), strict=True
            ):
                if left[place]:
                    left[place] -= 1
                    returns.append(episode["return"])
        games.close()
        found[task] = returns
        print(f"{task}: {np.mean(returns):.2f} in {len(returns)} episodes", flush=True)
    RANDOM.write_text(json.dumps(found) + "\n")


FURTHER = {"ablation": ablated, "procgen_changed": changed_games}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=[*CELLS, *FURTHER, "random"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.suite == "random":
        play_at_random()
        return
    every = FURTHER[arguments.suite]() if arguments.suite in FURTHER else compared(arguments.suite)
    missing = [run for run in every if not (KEPT / run.where / FILES[-1]).exists()]
    if arguments.list:
        for run in every:
            print(f"{run.where}: {'missing' if run in missing else 'kept'}")
        return
    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(train, missing))


if __name__ == "__main__":
    main()
