"""Compare MEM's bonus with none on Deep Sea, in PPO of Stable-Baselines3, TorchRL and RLlib.

    python -m experiments.adapters                      # run what results/adapters is missing, then print the table
    python -m experiments.adapters --frameworks sb3     # only these
    python -m experiments.adapters --table              # only print the table

Seeds 1 to 10, all counted; both have MEM's encoder and its losses, and beta0 is 0.2 or 0. A seed is solved as in
`experiments.deep_sea`. Settings are those of its PPO. TorchRL's first attempts, on seeds 1 to 3, had other heads
and advantages that were not normalized. RLlib needs an environment of its own (`.ci/rllib`).
"""

import argparse
from collections.abc import Callable
from importlib import import_module
from itertools import product

from experiments.deep_sea import HEAD, Attempt, list_rows, make_rows, read_attempts
from experiments.tables import append_rows, format_table

STUDY, TASK, VIEWS = "adapters", "toy/deep_sea", "depth+column"
SEEDS = range(1, 11)
FRAMEWORKS = ("sb3", "torchrl", "rllib")
BETA0 = {"mem": 0.2, "none": 0.0}


def run(framework: str, bonus: str, seed: int) -> Attempt:
    train: Callable[..., Attempt] = import_module(f"experiments.adapters.with_{framework}").run
    return train(name_variant(framework, bonus), beta0=BETA0[bonus], seed=seed)


def name_variant(framework: str, bonus: str) -> str:
    return f"{framework} ppo {bonus}"


def append_attempt(made: Attempt, framework: str, bonus: str) -> None:
    """Add an attempt to the table."""
    key = (STUDY, made.method, TASK, "ppo", "mem", bonus, VIEWS, made.seed)
    append_rows(STUDY, make_rows(made, key), {made.method: {"framework": framework, "bonus.beta0": BETA0[bonus]}})


def make_table() -> str:
    variants = [name_variant(framework, bonus) for framework in FRAMEWORKS for bonus in BETA0]
    return format_table(HEAD, list_rows(read_attempts(STUDY), variants))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS)
    asked = parser.parse_args()
    done = read_attempts(STUDY)
    for seed, framework, bonus in product(SEEDS, () if asked.table else asked.frameworks, BETA0):
        if (name_variant(framework, bonus), seed) not in done:
            made = run(framework, bonus, seed)
            append_attempt(made, framework, bonus)
            print(f"{made.method}, seed {seed}: solved at {made.solved_at_frame}", flush=True)
    print(make_table())


if __name__ == "__main__":
    main()
