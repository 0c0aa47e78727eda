"""Train every run of a comparison on real tasks from pixels, with the command that a user types.

    python -m experiments.real_tasks dmc                # runs that are missing; two at a time with --workers 2
    python -m experiments.real_tasks dmc_ablation       # one change of MEM at a time, on Ball in Cup
    python -m experiments.real_tasks procgen --list     # all runs, and which are missing
    python -m experiments.real_tasks procgen_changed    # one changed setting on Starpilot
    python -m experiments.real_tasks random             # 1,000 episodes of each game with random actions

A run trains in `runs/`. When it has finished, its values are added to the study's table in `results/`; of a game also
the returns of its last policy in 100 episodes on training levels and on all levels. Stopped at any moment, the command
continues with the runs that are missing, each from its last checkpoint. Seeds are fixed beforehand; all are kept.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.games import play_random
from experiments.tables import Row, append_rows, append_run, read_runs
from manyview.config.method import parse_method
from manyview.training.run_dir import RunDir

WORK = Path("runs")
SEEDS = (1, 2, 3)
EPISODES = 100
FINAL_METRICS = {"train": "final_return", "test": "final_test_return"}
"""By levels: the mean return of the last policy of a run there."""
PRESET = "cpu"
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
    "lambdas_0": ("representation.diff_coef=0", "representation.con_coef=0", "representation.adv_coef=0"),
    "marginal": ("bonus.entropy=marginal",),
    "literal_gradient": ("agent.critic_trains_encoder=false",),
}
"""Changes of the preset. A shorter run is the start of a longer one: no schedule here ends with the run."""

CHANGED_GAMES = (
    ("ppo+none", "env.further_view=cutout", "env.augmented_view=cutout", SEEDS),  # MEM's two views without MEM
    ("ppo+none", "ppo.discount=0.999", "agent.discount=0.999", (1,)),  # as OpenAI's
)
"""Changes on Starpilot: method, variant in the table (by earlier names of the settings), setting and seeds."""
DIAGNOSTICS = (
    *("critic_loss", "critic_grad_norm", "target_std", "value", "action_spread"),
    *("diff_loss", "con_loss", "adv_loss", "discriminator_loss", "floor_loss"),
    *("decorrelation_loss", "temporal_loss", "mem_loss"),
    *("contrast", "std", "rank", "share", "cosine", "discriminator_accuracy"),
)
"""Metrics of MEM's training; `std` stands for `std/VIEW` of every view, and so on."""
TRAIN_METRICS = {
    "dmc": (*DIAGNOSTICS, "healthy"),
    "dmc_ablation": ("action_spread", "std"),
    "procgen": ("clip_fraction",),
    "procgen_changed": ("clip_fraction",),
}
"""Training metrics that the tables of a study use."""


class Run(NamedTuple):
    study: str
    variant: str
    task: str
    method: str
    seed: int
    settings: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return WORK / self.study / self.variant / self.task.split("/")[1] / self.method / f"seed{self.seed}"


def list_comparison(suite: str) -> list[Run]:
    """Return the runs of a comparison, by seed."""
    return [Run(suite, PRESET, task, method, seed) for seed, (task, method) in product(SEEDS, CELLS[suite])]


def list_ablation() -> list[Run]:
    length = f"schedule.frames={ABLATION_FRAMES}"
    return [
        Run("dmc_ablation", variant, *ABLATED, seed, (*changed, length))
        for seed, (variant, changed) in product(ABLATION_SEEDS, ABLATION.items())
    ]


def list_changed_games() -> list[Run]:
    return [
        Run("procgen_changed", variant, "procgen/starpilot", method, seed, (setting,))
        for method, variant, setting, seeds in CHANGED_GAMES
        for seed in seeds
    ]


def list_missing(study: str, runs: list[Run]) -> list[Run]:
    """Return the runs that the study's table does not have yet."""
    kept = {run.key for run in read_runs(study)}
    return [run for run in runs if (run.variant, run.task, *parse_method(run.method), run.seed) not in kept]


def train(run: Run) -> None:
    """Start or resume a run; add it to the study's table when it has finished."""
    work, log = run.path, run.path.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    names = ["--method", run.method, "--preset", PRESET, "--seed", str(run.seed), "--out", str(work)]
    settings = ["--set", *run.settings] if run.settings else []
    with log.open("a") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "manyview", "train", run.task, *names, *settings],
            stdout=output,
            stderr=output,
            check=False,
            timeout=7 * 24 * 3600,
        )
    # A run that was asked to stop returns 0 too.
    if ended.returncode != 0 or not RunDir(work).is_finished:
        print(f"{work}: not finished, see {log}", flush=True)
        return
    levels = FINAL_METRICS if run.task.startswith("procgen") else {}
    final = {metric: evaluate(work, level) for level, metric in levels.items()}
    append_run(run.study, work, run.variant, train_metrics=TRAIN_METRICS[run.study], final=final)
    print(f"{work}: added to the table of {run.study}", flush=True)


def evaluate(run_dir: Path, levels: str) -> float:
    """Return the mean return of the last policy of a run on training or test levels."""
    arguments = ["evaluate", str(run_dir), "--levels", levels, "--episodes", str(EPISODES), "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "manyview", *arguments], capture_output=True, text=True, check=True, timeout=24 * 3600
    )
    return float(json.loads(ended.stdout)["mean"])


def play_random_policy() -> None:
    """Add the returns of random actions on training levels to the table of `procgen`."""
    for task in sorted({task for task, _ in CELLS["procgen"]}):
        returns = play_random(task)
        values = {
            "final_return": float(np.mean(returns)),
            "training_episodes": float(len(returns)),
            "rewarded_episodes": float(np.sum(np.array(returns) > 0)),
        }
        key = ("procgen", "random", task, "random", "none", "none", "screen", 1, 0.0, None)
        append_rows("procgen", [Row(*key, metric, value, "") for metric, value in values.items()], {})
        print(f"{task}: {np.mean(returns):.2f} in {len(returns)} episodes", flush=True)


STUDIES = {
    "dmc": lambda: list_comparison("dmc"),
    "dmc_ablation": list_ablation,
    "procgen": lambda: list_comparison("procgen"),
    "procgen_changed": list_changed_games,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=[*STUDIES, "random"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.study == "random":
        play_random_policy()
        return
    every = STUDIES[arguments.study]()
    missing = list_missing(arguments.study, every)
    if arguments.list:
        for run in every:
            print(f"{run.path}: {'missing' if run in missing else 'in the table'}")
        return
    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(train, missing))


if __name__ == "__main__":
    main()
