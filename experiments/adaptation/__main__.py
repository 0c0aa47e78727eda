"""Run what results/adaptation is missing, then print its table; see PLAN.md.

python -m experiments.adaptation
python -m experiments.adaptation --table
"""

import argparse

from experiments.adaptation import ARMS, HEAD, SEEDS, STUDY, list_rows, make_config
from experiments.bonus.controls import register_controls
from experiments.deep_sea import append_attempt, read_attempts, run_until_solved
from experiments.tables import format_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    done = read_attempts(STUDY)
    # Seed by seed, so that a table of the first few is a fair one.
    missing = [(arm, seed) for seed in SEEDS for arm in ARMS if (arm.variant, seed) not in done]
    register_controls()
    for arm, seed in [] if arguments.table else missing:
        config = make_config(arm, seed)
        attempt = run_until_solved(config, arm.variant)
        append_attempt(attempt, config, STUDY)
        print(f"{arm.variant}, seed {seed}: solved at {attempt.solved_at_frame}", flush=True)
    print(format_table(HEAD, list_rows(read_attempts(STUDY))))


if __name__ == "__main__":
    main()
