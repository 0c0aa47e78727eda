"""Train the runs of a study's sweep file, and keep the study's table.

    python -m experiments.study experiments/base/trials.toml           # runs that results/base is missing
    python -m experiments.study experiments/base/trials.toml --list    # all runs, and which are missing
    python -m experiments.study experiments/base/trials.toml --only "finger.*seed101" --workers 2

The study has the name of the file's directory. A run trains in the directory that `manyview sweep` would use, in a
process of its own; when it has finished, its values are added to `results/STUDY`. Stopped at any moment, the command
continues with the runs that are missing, each from its last checkpoint.
"""

import argparse
import os
import re
import signal
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Lock, Thread

from experiments.bonus.controls import register_controls
from experiments.tables import RESULTS, RunKey, Value, append_run, read_runs
from manyview.config.method import parse_method
from manyview.scale.sweep import PlannedRun, read_sweep
from manyview.training import RunDir
from manyview.training.runner import Runner

TRAIN_METRICS = (
    "critic_loss",
    "target_std",
    "value",
    "dormant_actor",
    "dormant_critic",
    "drift",
    "reward_std",
    "entropy",
    "temperature",
)
"""Training metrics that the table keeps of every run that has them."""
MAX_RUN_S = 7 * 24 * 3600.0
_table_lock = Lock()


def get_key(run: PlannedRun) -> RunKey:
    """Return variant, task, parts and seed, as `TableRun.key` does."""
    return run.variant, run.config.task, *parse_method(run.config.method), run.config.seed


def list_missing(runs: Collection[PlannedRun], study: str, results: Path = RESULTS) -> list[PlannedRun]:
    """Return the runs that the study's table does not have."""
    kept = {run.key for run in read_runs(study, results=results)}
    return [run for run in runs if get_key(run) not in kept]


Train = Callable[[PlannedRun], None]
Measure = Callable[[PlannedRun], Iterable[Value]]


def train(run: PlannedRun) -> None:
    """Start or resume a run, and train it to its end."""
    register_controls()
    if not RunDir(run.run_dir).is_finished:
        with Runner(run.config, RunDir(run.run_dir)) as runner:
            runner.run()


def measure_nothing(run: PlannedRun) -> Iterable[Value]:  # noqa: ARG001
    """Return no values beyond those of every study."""
    return ()


def _stop_with_parent() -> None:
    """Wait for the end of the study's command, then stop this process's run as SIGTERM does, with a checkpoint."""
    if parent := parent_process():
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _train_in_child(train: Train, run: PlannedRun) -> None:
    # A command that is killed cannot stop its runs itself.
    Thread(target=_stop_with_parent, daemon=True).start()
    train(run)


def train_and_keep(
    run: PlannedRun, study: str, results: Path = RESULTS, *, train: Train = train, measure: Measure = measure_nothing
) -> None:
    """Train a run in a process of its own and add it to the table, with the values that `measure` returns."""
    process = get_context("spawn").Process(target=_train_in_child, args=(train, run))
    process.start()
    process.join(MAX_RUN_S)
    if process.exitcode or not RunDir(run.run_dir).is_finished:
        print(f"{run.run_dir}: not finished, exit code {process.exitcode}", flush=True)
        return
    with _table_lock:
        append_run(
            study,
            run.run_dir,
            run.variant,
            train_metrics=TRAIN_METRICS,
            further=measure(run),
            results=results,
        )
    print(f"{run.run_dir}: added to the table of {study}", flush=True)


def main(description: str | None = __doc__, *, train: Train = train, measure: Measure = measure_nothing) -> None:
    """Run the command of a study whose runs need their own `train` or `measure`, or the common ones."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--list", action="store_true", help="only list the runs")
    parser.add_argument("--only", default="", help="regular expression that a run's directory must contain")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    asked = parser.parse_args()
    register_controls()
    study = asked.sweep.resolve().parent.name
    planned = [run for run in read_sweep(asked.sweep).plan_runs() if re.search(asked.only, str(run.run_dir))]
    missing = list_missing(planned, study)
    if asked.list:
        for run in planned:
            print(f"{run.run_dir}: {'missing' if run in missing else 'in the table'}")
        return
    with ThreadPoolExecutor(asked.workers) as pool:
        list(pool.map(partial(train_and_keep, study=study, train=train, measure=measure), missing))


if __name__ == "__main__":
    main()
