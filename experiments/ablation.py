"""Measure the variants behind MEM's defaults: `experiments.unrewarded` on three to five tasks.

    python -m experiments.ablation                 # run what results/unrewarded is missing, then print the table
    python -m experiments.ablation --table         # only print the table

A run that was stopped starts again; finished ones are in the table. About 40 minutes on two cores.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from experiments.recording import VIEWS
from experiments.tables import TableRun, append_rows, flatten, format_table, read_runs
from experiments.unrewarded import describe_run, make_rows

STUDY = "unrewarded"
TASKS = ("pendulum_swingup", "cheetah_run", "ball_in_cup_catch", "finger_turn_hard", "reacher_hard")
COMPARED = ("cheetah_run", "ball_in_cup_catch", "finger_turn_hard")  # the default was chosen on these

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


# Clean frames within the batch, clean frames against a bank, frames with one shift per image within the batch.
FIGURES = ("none marginal batch", "none marginal bank for all", "each marginal batch")


def measure_variant(variant: str, task: str) -> None:
    """Measure a variant on a task in a process of its own and add it to the table."""
    command = [sys.executable, "-m", "experiments.unrewarded", task, *VARIANTS[variant]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=24 * 3600, env=environment)
    measurements = [json.loads(line) for line in ended.stdout.splitlines()]
    settings = describe_run([task, *VARIANTS[variant]])
    seed = settings.pop("seed")
    for name in ("task", "threads"):
        del settings[name]
    append_rows(STUDY, make_rows(STUDY, variant, task, seed, measurements), {variant: flatten(settings)})
    print(f"done: {variant}, {task}", flush=True)


def make_table() -> str:
    """Return a Markdown table: the start of training as values, every variant as the change from it."""
    runs = {(run.variant, run.task.removeprefix("dmc/")): run for run in read_runs(STUDY)}
    body = []
    for variant in ("at the start", *VARIANTS):
        at, source = (0, "default") if variant == "at the start" else (-1, variant)
        found = {task: runs[source, task] for task in TASKS if (source, task) in runs}
        if found:
            body.append(tuple(_cells(variant, found, at)))
    return format_table(("variant", "updates", "std", "rank", "discriminator", "bonus", *TASKS), body)


def _cells(variant: str, runs: Mapping[str, TableRun], at: int) -> Iterator[str]:
    yield variant
    yield f"{max(run.series('reward_mean')[0][at] for run in runs.values()):.0f}"
    for metric, digits in (("std", 3), ("rank", 0)):
        names = [f"{part}_{metric}/{view}" for part in ("specific", "shared") for view in VIEWS]
        yield f"{min(run.series(name)[1][at] for run in runs.values() for name in names):.{digits}f}"
    yield f"{max(run.series('discriminator')[1][at] for run in runs.values()):.2f}"
    rewards = [run.series("reward_mean")[1] for run in runs.values()]
    yield f"{min(reward[at] / reward[0] for reward in rewards):.2f}"
    for task in TASKS:
        figures = [runs[task].series(f"fidelity/{figure}")[1] for figure in FIGURES] if task in runs else []
        yield " / ".join(f"{values[0]:.2f}" if at == 0 else f"{values[at] - values[0]:+.2f}" for values in figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    if not asked.table:
        done = {(run.variant, run.task) for run in read_runs(STUDY)}
        jobs = [(v, task) for v in asked.variants for task in (TASKS if "5000" in VARIANTS[v] else COMPARED)]
        missing = [(v, task) for v, task in jobs if (v, f"dmc/{task}") not in done]
        with ThreadPoolExecutor(asked.workers) as pool:
            list(pool.map(lambda job: measure_variant(*job), missing))
    print(make_table())


if __name__ == "__main__":
    main()
