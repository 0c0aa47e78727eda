"""The measurements behind MEM's defaults: many variants of `unrewarded`, on five tasks.

    python -m benchmarks.ablation                 # runs what is missing, two at a time, then prints the table
    python -m benchmarks.ablation --table         # only the table, from results/unrewarded

A run that was stopped is begun again; finished ones are kept. About an hour on two cores.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results" / "unrewarded"
TASKS = ("pendulum_swingup", "cheetah_run", "ball_in_cup_catch", "finger_turn_hard", "reacher_hard")

LONG, SHORT = ("--updates", "5000", "--every", "1000"), ("--updates", "1000", "--every", "1000")
NOTHING_OF_OURS = ("floor_coef=0", "decorrelation_coef=0", "temporal_coef=0")
VARIANTS: dict[str, tuple[str, ...]] = {
    "default": LONG,
    "literal": (*LONG, "--config", "literal"),
    "default, short": SHORT,
    "nothing of ours": (*SHORT, "--config", *NOTHING_OF_OURS),
    "nothing of ours, slow encoder": (*SHORT, "--slow-rate", "0.001", "--config", *NOTHING_OF_OURS),
    "nothing of ours, relative distances": (*SHORT, "--config", *NOTHING_OF_OURS, "distance_scale=relative"),
    "floor alone": (*SHORT, "--config", "decorrelation_coef=0", "temporal_coef=0"),
    "floor and decorrelation": (*SHORT, "--config", "temporal_coef=0"),
    "floor and closeness": (*SHORT, "--config", "decorrelation_coef=0"),
    "closeness 0.3": (*SHORT, "--config", "temporal_coef=0.3"),
    "closeness 1": (*SHORT, "--config", "temporal_coef=1.0"),
    "contrast 0.1": (*SHORT, "--config", "temporal=contrast", "temporal_coef=0.1"),
    "contrast 1, temperature 1": (
        *(*SHORT, "--config"),
        *("temporal=contrast", "temporal_coef=1.0", "temporal_temperature=1.0"),
    ),
    "common shift": (*SHORT, "--shift", "common"),
    "3 steps ahead": (*SHORT, "--ahead", "3"),
    "weights / 10": (*SHORT, "--config", "diff_coef=0.001", "con_coef=0.01", "adv_coef=0.01"),
    "weights * 10": (*SHORT, "--config", "diff_coef=0.1", "con_coef=1.0", "adv_coef=1.0"),
}


def path(variant: str, task: str) -> Path:
    return (
        RESULTS / variant.replace("*", "times").replace("/", "by").replace(",", "").replace(" ", "_") / f"{task}.jsonl"
    )


def run(variant: str, task: str) -> None:
    kept = path(variant, task)
    if kept.exists():
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    under_way = kept.with_suffix(".part")
    with under_way.open("w") as out:
        command = [sys.executable, "-m", "benchmarks.unrewarded", task, *VARIANTS[variant]]
        subprocess.run(command, check=True, stdout=out, env={**os.environ, "OMP_NUM_THREADS": "1"})
    under_way.replace(kept)
    print(f"done: {variant}, {task}", flush=True)


def table() -> None:
    figures = ("none marginal batch", "none joint batch", "each marginal batch", "none marginal bank for all")
    print(f"{'variant':36}{'task':20}{'updates':>7}  std  rank  disc  reward  |  fidelity: " + ", ".join(figures))
    shown = set()
    for variant in VARIANTS:
        for task in TASKS:
            if not path(variant, task).exists():
                continue
            lines = [json.loads(line) for line in path(variant, task).read_text().splitlines()]
            first = [("at the start", lines[0])] if task not in shown and variant == "default" else []
            for name, line in [*first, (variant, lines[-1])]:
                least = min(line["specific_std"] + line["shared_std"])
                rank = min(line["specific_rank"] + line["shared_rank"])
                print(
                    f"{name:36}{task:20}{line['updates']:7}  {least:.3f} {rank:4.1f} {line['discriminator']:.2f} "
                    f"{line['reward_mean']:7.3f}  |  " + "  ".join(f"{line['fidelity'][f]:6.3f}" for f in figures)
                )
            shown.add(task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    if not asked.table:
        jobs = [(variant, task) for variant in asked.variants for task in TASKS]
        with ThreadPoolExecutor(asked.workers) as pool:
            list(pool.map(lambda job: run(*job), jobs))
    table()


if __name__ == "__main__":
    main()
