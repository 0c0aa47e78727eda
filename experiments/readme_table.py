"""Print the table of the README: the returns with each bonus, from the tables of the studies.

python -m experiments.readme_table
"""

from collections.abc import Iterator

from experiments import deep_sea
from experiments.results_table import group_by_cell
from experiments.tables import format_table

HEAD = ("", "MEM", "RE3", "no bonus")
BONUSES = ("mem", "re3", "none")
DEEP_SEA = {"DrQ-v2": "", "PPO": "ppo "}
"""Prefix of the variants of each agent."""
TASKS = (
    ("Pendulum Swingup, DrQ-v2", "dmc/pendulum_swingup", "drqv2", "return", 0),
    ("Ball in Cup, DrQ-v2", "dmc/ball_in_cup_catch", "drqv2", "return", 0),
    ("Starpilot, PPO", "procgen/starpilot", "ppo", "final_return", 1),
    ("Bigfish, PPO", "procgen/bigfish", "ppo", "final_return", 1),
)
"""Name, task, agent, metric, digits."""


def list_rows() -> Iterator[tuple[str, ...]]:
    attempts = deep_sea.read_attempts()
    for agent, prefix in DEEP_SEA.items():
        marginal, joint, re3, none = (
            sum(attempts[prefix + method, seed].solved_at_frame is not None for seed in deep_sea.SEEDS)
            for method in ("mem marginal", "mem joint", "re3", "none")
        )
        name = f"Deep Sea, {agent}: seeds of {len(deep_sea.SEEDS)} whose policy reached the treasure"
        yield name, f"{marginal} `marginal`, {joint} `joint`", str(re3), str(none)
    runs = group_by_cell("dmc") | group_by_cell("procgen")
    for name, task, agent, metric, digits in TASKS:
        cells = (runs.get((task, f"{agent}+{bonus}"), ()) for bonus in BONUSES)
        yield f"{name}: return of each seed", *(", ".join(f"{r.last(metric):.{digits}f}" for r in c) for c in cells)


def main() -> None:
    print(format_table(HEAD, list_rows()))


if __name__ == "__main__":
    main()
