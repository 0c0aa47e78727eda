"""Run the study; see the package."""

import argparse
from pathlib import Path

from experiments.state import (
    FINAL_HEAD,
    FRAMES,
    HEAD,
    SEEDS,
    STUDY,
    choose_combination,
    list_cells,
    list_final_rows,
    list_rows,
    make_config,
)
from experiments.state.training import train_run
from experiments.tables import RESULTS, TableRun, append_rows, format_table, read_runs, select_settings
from manyview.config.overrides import to_plain
from manyview.config.presets import apply_sections


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only print the tables")
    parser.add_argument("--stage", choices=SEEDS, help="run one stage alone")
    parser.add_argument("--frames", type=int, default=FRAMES, help="fewer for a trial, with --results elsewhere")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if asked.frames != FRAMES and asked.results.resolve() == RESULTS:
        parser.error(f"--frames: expected {FRAMES} for the study, got {asked.frames}. Set --results for a trial.")
    stages = [stage for stage in SEEDS if asked.stage in (None, stage)]
    for stage in [] if asked.table else stages:
        runs = read_runs(STUDY, results=asked.results)
        done = {(run.variant, run.task, run.seed) for run in runs}
        for arm, task, seed in list_cells(stage, runs):
            if (arm.variant, task, seed) in done:
                continue
            config = apply_sections(make_config(arm, task, seed), {"schedule": {"frames": asked.frames}})
            rows = train_run(STUDY, arm.variant, config)
            settings = {arm.variant: select_settings(to_plain(config))}
            append_rows(STUDY, rows, settings, results=asked.results)
            last = rows[-1].wall_time_s
            score = TableRun(tuple(rows)).score
            print(f"{arm.variant}, {task}, seed {seed}: {score:.0f} after {last:.0f} s", flush=True)
    runs = read_runs(STUDY, results=asked.results)
    for stage in stages:
        print(f"\n{stage}\n\n{format_table(HEAD, list_rows(stage, runs))}")
    print(f"\ncombination: {choose_combination(runs)}\n\n{format_table(FINAL_HEAD, list_final_rows(runs))}")


if __name__ == "__main__":
    main()
