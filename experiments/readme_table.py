"""Print the table of the README: the returns with each bonus, from the tables of the studies.

python -m experiments.readme_table
"""

from collections.abc import Iterator

from experiments import composition
from experiments.deep_sea import read_attempts
from experiments.results_table import group_by_cell
from experiments.tables import format_table

HEAD = ("", "MEM", "RE3", "no bonus")
BONUSES = ("mem", "re3", "none")
DEEP_SEA = {"DrQ-v2": "drqv2", "SAC": "sac", "PPO": "ppo"}
"""Agents of the small sea."""
TASKS = (
    ("Pendulum Swingup, DrQ-v2", "dmc/pendulum_swingup", "drqv2", "return", 0),
    ("Ball in Cup, DrQ-v2", "dmc/ball_in_cup_catch", "drqv2", "return", 0),
    ("Starpilot, PPO", "procgen/starpilot", "ppo", "final_return", 1),
    ("Bigfish, PPO", "procgen/bigfish", "ppo", "final_return", 1),
)
"""Name, task, agent, metric, digits."""


def list_rows() -> Iterator[tuple[str, ...]]:
    attempts = read_attempts(composition.STUDY)
    for title, agent in DEEP_SEA.items():
        marginal, joint, re3, none = (
            sum(attempts[f"{agent} {bonus} 10", seed].solved_at_frame is not None for seed in composition.SEEDS)
            for bonus in ("mem marginal", "mem joint", "re3", "none")
        )
        name = f"Deep Sea, {title}: seeds of {len(composition.SEEDS)} whose policy reached the treasure"
        yield name, f"{marginal} `marginal`, {joint} `joint`", str(re3), str(none)
    runs = group_by_cell("dmc") | group_by_cell("procgen")
    for name, task, agent, metric, digits in TASKS:
        cells = (runs.get((task, f"{agent}+{bonus}"), ()) for bonus in BONUSES)
        yield f"{name}: return of each seed", *(", ".join(f"{r.last(metric):.{digits}f}" for r in c) for c in cells)


def main() -> None:
    print(format_table(HEAD, list_rows()))


if __name__ == "__main__":
    main()
