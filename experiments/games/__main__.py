"""Run the study; see the package."""

import argparse

from experiments.games import GAMES, HEAD, STUDY, list_rows, make_rows, play_random
from experiments.tables import append_rows, format_table, read_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only print the table")
    asked = parser.parse_args()
    played = {run.task for run in read_runs(STUDY)}
    for task in [] if asked.table else [task for task in GAMES if task not in played]:
        append_rows(STUDY, make_rows(task, play_random(task)), {})
        print(f"{task}: added", flush=True)
    print(format_table(HEAD, list_rows(read_runs(STUDY))))


if __name__ == "__main__":
    main()
