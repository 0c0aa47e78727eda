"""Run the study; see the package."""

import argparse

from experiments.composition import ALL_ARMS, HEAD, SEEDS, SIZES, STUDY, list_rows, make_config, run_arm
from experiments.deep_sea import append_attempt, read_attempts
from experiments.tables import format_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--size", type=int, choices=SIZES, help="only seas of this size")
    asked = parser.parse_args()
    done = read_attempts(STUDY)
    # Seed by seed, so that a table of the first few is a fair one.
    arms = [arm for arm in ALL_ARMS if asked.size in (None, arm.size)]
    missing = [(arm, seed) for seed in SEEDS for arm in arms if (arm.variant, seed) not in done]
    for arm, seed in [] if asked.table else missing:
        made = run_arm(arm, seed)
        append_attempt(made, make_config(arm, seed), STUDY)
        print(f"{arm.variant}, seed {seed}: solved at {made.solved_at_frame}", flush=True)
    print(format_table(HEAD, list_rows(read_attempts(STUDY))))


if __name__ == "__main__":
    main()
