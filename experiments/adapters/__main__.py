"""Compare MEM's bonus with none on Deep Sea, in PPO of Stable-Baselines3, TorchRL and RLlib and SAC of the first.

    python -m experiments.adapters                      # run what results/adapters is missing, then print the table
    python -m experiments.adapters --agents "sb3 sac"   # only these
    python -m experiments.adapters --table              # only print the table

Seeds 1 to 10, all counted; both have MEM's encoder and its losses, and beta0 is 0.2 (SAC: 0.05) or 0. A seed is solved
as in `experiments.deep_sea`. Settings are those of its PPO; SAC has those of `experiments.composition`. TorchRL's first
attempts, on seeds 1 to 3, had other heads and advantages that were not normalized. RLlib needs an environment of its
own (`.ci/rllib`).
"""

import argparse
from collections.abc import Callable
from importlib import import_module
from itertools import product

from experiments.deep_sea import HEAD, Attempt, list_rows, make_rows, read_attempts
from experiments.tables import append_rows, format_table
from manyview.report.statistics import compute_fisher_p, correct_holm

STUDY, TASK, VIEWS = "adapters", "toy/deep_sea", "depth+column"
SEEDS = range(1, 11)
MODULES = {"sb3 ppo": "with_sb3", "sb3 sac": "with_sb3_sac", "torchrl ppo": "with_torchrl", "rllib ppo": "with_rllib"}
"""Modules of the agents, each named by its framework and algorithm."""
BETA0 = {"ppo": {"mem": 0.2, "none": 0.0}, "sac": {"mem": 0.05, "none": 0.0}}


def run(agent: str, bonus: str, seed: int) -> Attempt:
    train: Callable[..., Attempt] = import_module(f"experiments.adapters.{MODULES[agent]}").run
    return train(f"{agent} {bonus}", beta0=BETA0[agent.split()[1]][bonus], seed=seed)


def append_attempt(made: Attempt, agent: str, bonus: str) -> None:
    """Add an attempt to the table."""
    framework, algorithm = agent.split()
    task = TASK if algorithm == "ppo" else f"{TASK}_continuous"
    key = (STUDY, made.method, task, algorithm, "mem", bonus, VIEWS, made.seed)
    settings = {"framework": framework, "bonus.beta0": BETA0[algorithm][bonus]}
    append_rows(STUDY, make_rows(made, key), {made.method: settings})


def make_table() -> str:
    variants = [f"{agent} {bonus}" for agent in MODULES for bonus in ("mem", "none")]
    return format_table(HEAD, list_rows(read_attempts(STUDY), variants))


def format_tests() -> str:
    """Return the p-value of each agent: solved seeds with the bonus against those without, corrected by Holm."""
    attempts = read_attempts(STUDY)

    def count_solved(variant: str) -> int:
        return sum(attempts[variant, seed].solved_at_frame is not None for seed in SEEDS)

    total = len(SEEDS)
    p_values = {
        agent: compute_fisher_p(count_solved(f"{agent} mem"), total, count_solved(f"{agent} none"), total)
        for agent in MODULES
    }
    return ", ".join(f"{agent} p = {p:.3f}" for agent, p in correct_holm(p_values).items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--agents", nargs="+", choices=MODULES, default=list(MODULES))
    asked = parser.parse_args()
    done = read_attempts(STUDY)
    for seed, agent, bonus in product(SEEDS, () if asked.table else asked.agents, ("mem", "none")):
        if (f"{agent} {bonus}", seed) not in done:
            made = run(agent, bonus, seed)
            append_attempt(made, agent, bonus)
            print(f"{made.method}, seed {seed}: solved at {made.solved_at_frame}", flush=True)
    print(make_table())
    print(f"\nFisher's exact test, one-sided, corrected by Holm: {format_tests()}")


if __name__ == "__main__":
    main()
