"""Run ICM, APT and VCSE on Deep Sea, 10 x 10 cells, in the settings of `experiments.composition`.

    python -m experiments.curiosity                  # run what results/curiosity is missing, then print the table
    python -m experiments.curiosity --table          # only print the table

Seeds 11 to 15 of every arm, all counted; `none` and `rnd` are the runs of results/composition with these seeds. No arm
is tuned here. Five seeds show whether a bonus works at all, not which is better.
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from experiments import composition
from experiments.composition import Arm, make_arm_config
from experiments.deep_sea import Attempt, append_attempt, read_attempts, run_until_solved
from experiments.tables import format_table
from manyview.config.schema import RunConfig

STUDY, SIZE, SEEDS = "curiosity", 10, range(11, 16)
ARMS = {"ppo": ("icm", "apt"), "drqv2": ("icm", "apt", "vcse")}
COMPARED = ("none", "rnd")
SMALL: dict[str, Any] = {"bonus": {"all": {"hidden": 128, "lr": 1e-3}}}
"""Networks of the size and learning rate of `rnd` in `experiments.composition`."""


def make_config(arm: Arm, seed: int) -> RunConfig:
    return make_arm_config(arm, seed, arm.bonus, SMALL)


HEAD = ("agent", "bonus", "seeds", "found", "solved", "solved at frame, by seed")


def list_rows(attempts: Mapping[tuple[str, int], Attempt]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each arm."""
    for agent, bonuses in ARMS.items():
        for bonus in (*COMPARED, *bonuses):
            variant = Arm(agent, bonus, SIZE).variant
            made = [attempts[variant, seed] for seed in SEEDS if (variant, seed) in attempts]
            found = sum(one.first_found_at_frame is not None for one in made)
            solved = sum(one.solved_at_frame is not None for one in made)
            frames = ", ".join("-" if one.solved_at_frame is None else f"{one.solved_at_frame:,}" for one in made)
            yield agent, bonus, str(len(made)), str(found), str(solved), frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only print the table")
    done = read_attempts(STUDY)
    # Seed by seed, so that a table of the first few is a fair one.
    runs = [(Arm(agent, bonus, SIZE), seed) for agent in ARMS for seed in SEEDS for bonus in ARMS[agent]]
    missing = [(arm, seed) for arm, seed in runs if (arm.variant, seed) not in done]
    for arm, seed in [] if parser.parse_args().table else missing:
        config = make_config(arm, seed)
        made = run_until_solved(config, arm.variant)
        append_attempt(made, config, STUDY)
        print(f"{arm.variant}, seed {seed}: solved at {made.solved_at_frame}", flush=True)
    print(format_table(HEAD, list_rows(read_attempts(composition.STUDY) | read_attempts(STUDY))))


if __name__ == "__main__":
    main()
