"""The measurements behind MEM's defaults: many variants of `unrewarded`, on three to five tasks.

    python -m benchmarks.ablation                 # runs what is missing, two at a time, then prints the table
    python -m benchmarks.ablation --table         # only the table, from results/unrewarded

A run that was stopped is begun again; finished ones are kept. About 40 minutes on two cores.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.unrewarded import described

RESULTS = Path(__file__).parents[1] / "results" / "unrewarded"
TASKS = ("pendulum_swingup", "cheetah_run", "ball_in_cup_catch", "finger_turn_hard", "reacher_hard")
COMPARED = ("cheetah_run", "ball_in_cup_catch", "finger_turn_hard")  # where the default was chosen from the variants

LONG, SHORT = ("--updates", "5000", "--every", "5000"), ("--updates", "1000", "--every", "1000")
NOTHING_OF_OURS = ("floor_coef=0", "decorrelation_coef=0", "temporal_coef=0")
VARIANTS: dict[str, tuple[str, ...]] = {
    "default": LONG,
    "literal": (*SHORT, "--config", "literal"),
    "default, short": SHORT,
    "nothing of ours": (*SHORT, "--config", *NOTHING_OF_OURS),
    "nothing of ours, slow encoder": (*SHORT, "--slow-rate", "0.001", "--config", *NOTHING_OF_OURS),
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
    "contrast 1, temperature 1, long": (
        *("--updates", "5000", "--every", "2500", "--config"),
        *("temporal=contrast", "temporal_coef=1.0", "temporal_temperature=1.0"),
    ),
    "common shift": (*SHORT, "--shift", "common"),
    "3 steps ahead": (*SHORT, "--ahead", "3"),
    "weights / 10": (*SHORT, "--config", "diff_coef=0.001", "con_coef=0.01", "adv_coef=0.01"),
    "weights * 10": (*SHORT, "--config", "diff_coef=0.1", "con_coef=1.0", "adv_coef=1.0"),
}


# Clean frames within the batch, clean frames against a bank, frames shifted each by itself within the batch.
FIGURES = ("none marginal batch", "none marginal bank for all", "each marginal batch")


def path(variant: str, task: str) -> Path:
    return (
        RESULTS / variant.replace("*", "times").replace("/", "by").replace(",", "").replace(" ", "_") / f"{task}.jsonl"
    )


def run(variant: str, task: str) -> None:
    kept = path(variant, task)
    if kept_run(variant, task):
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    under_way = kept.with_suffix(".part")
    with under_way.open("w") as out:
        command = [sys.executable, "-m", "benchmarks.unrewarded", task, *VARIANTS[variant]]
        subprocess.run(command, check=True, stdout=out, timeout=24 * 3600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    under_way.replace(kept)
    print(f"done: {variant}, {task}", flush=True)


def table() -> None:
    """A Markdown table: the start of training as values, every variant as the change from it."""
    print("| variant | updates | std | rank | discriminator | bonus | " + " | ".join(TASKS) + " |")
    print("|---" * (6 + len(TASKS)) + "|")
    for variant in ("at the start", *VARIANTS):
        runs = {task: kept_run("default" if variant == "at the start" else variant, task) for task in TASKS}
        ended = {task: lines[0 if variant == "at the start" else -1] for task, lines in runs.items() if lines}
        if not ended:
            continue
        starts = {task: runs[task][0] for task in ended}
        cells = [variant, str(max(line["updates"] for line in ended.values()))]
        cells.append(f"{min(min(line['specific_std'] + line['shared_std']) for line in ended.values()):.3f}")
        cells.append(f"{min(min(line['specific_rank'] + line['shared_rank']) for line in ended.values()):.0f}")
        cells.append(f"{max(line['discriminator'] for line in ended.values()):.2f}")
        cells.append(f"{min(line['reward_mean'] / starts[task]['reward_mean'] for task, line in ended.items()):.2f}")
        for task in TASKS:
            figures = []
            for figure in FIGURES if task in ended else ():
                start = 0.0 if variant == "at the start" else starts[task]["fidelity"][figure]
                figures.append(f"{ended[task]['fidelity'][figure] - start:{'.2f' if start == 0.0 else '+.2f'}}")
            cells.append(" / ".join(figures))
        print("| " + " | ".join(cells) + " |")


def kept_run(variant: str, task: str) -> list[dict[str, Any]]:
    """The measurements of a finished run, if it is one of this variant as it stands now."""
    kept = path(variant, task)
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    return lines if lines and lines[0]["run"] == described([task, *VARIANTS[variant]]) else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    if not asked.table:
        jobs = [(v, task) for v in asked.variants for task in (TASKS if "5000" in VARIANTS[v] else COMPARED)]
        with ThreadPoolExecutor(asked.workers) as pool:
            list(pool.map(lambda job: run(*job), jobs))
    table()


if __name__ == "__main__":
    main()
