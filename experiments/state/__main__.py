"""Run the study; see the package."""

import argparse
import re
from pathlib import Path

from experiments.state import (
    FINAL_ARM,
    FINAL_HEAD,
    HEAD,
    SEEDS,
    STUDY,
    list_final_rows,
    list_final_runs,
    list_rows,
    make_config,
)
from experiments.state.training import train_run
from experiments.tables import RESULTS, TableRun, append_rows, format_table, read_runs, select_settings
from manyview.config.overrides import to_plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only print the tables")
    parser.add_argument("--only", default="", help="regular expression that `TASK seedN` must contain")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    runs = read_runs(STUDY, results=asked.results)
    done = {(run.variant, run.task, run.seed) for run in runs}
    for task, seed in [] if asked.table else list_final_runs():
        if (FINAL_ARM.variant, task, seed) in done or not re.search(asked.only, f"{task} seed{seed}"):
            continue
        config = make_config(FINAL_ARM, task, seed)
        rows = train_run(STUDY, FINAL_ARM.variant, config)
        append_rows(STUDY, rows, {FINAL_ARM.variant: select_settings(to_plain(config))}, results=asked.results)
        print(f"{task}, seed {seed}: {TableRun(tuple(rows)).score:.0f} after {rows[-1].wall_time_s:.0f} s", flush=True)
    runs = read_runs(STUDY, results=asked.results)
    for stage in SEEDS:
        print(f"\n{stage}\n\n{format_table(HEAD, list_rows(stage, runs))}")
    print(f"\n{format_table(FINAL_HEAD, list_final_rows(runs))}")


if __name__ == "__main__":
    main()
