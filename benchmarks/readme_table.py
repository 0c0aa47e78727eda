"""The table of the README: what each bonus got, in the runs that are kept.

python -m benchmarks.readme_table
"""

from collections.abc import Callable, Iterator

from benchmarks import deep_sea
from benchmarks.results_table import by_cell, in_markdown, mean_played
from manyview.report.curves import Curve

HEAD = ("", "MEM", "RE3", "no bonus")
BONUSES = ("mem", "re3", "none")
IN_DEEP_SEA = {"DrQ-v2": "", "PPO": "ppo "}
"""How the names of its attempts begin."""


def _last_evaluation(run: Curve) -> str:
    return f"{run.returns[-1]:.0f}"


def _last_policy(run: Curve) -> str:
    return f"{mean_played(run, 'train'):.1f}"


TASKS: tuple[tuple[str, str, str, Callable[[Curve], str]], ...] = (
    ("Pendulum Swingup, DrQ-v2", "dmc/pendulum_swingup", "drqv2", _last_evaluation),
    ("Ball in Cup, DrQ-v2", "dmc/ball_in_cup_catch", "drqv2", _last_evaluation),
    ("Starpilot, PPO", "procgen/starpilot", "ppo", _last_policy),
    ("Bigfish, PPO", "procgen/bigfish", "ppo", _last_policy),
)


def rows() -> Iterator[tuple[str, ...]]:
    attempts = deep_sea.kept()
    for agent, begin in IN_DEEP_SEA.items():
        marginal, joint, re3, none = (
            sum(attempts[begin + method, seed].solved_at_frame is not None for seed in deep_sea.SEEDS)
            for method in ("mem marginal", "mem joint", "re3", "none")
        )
        what = f"Deep Sea, {agent}: seeds of {len(deep_sea.SEEDS)} that learned the way"
        yield what, f"{marginal} `marginal`, {joint} `joint`", str(re3), str(none)
    runs = by_cell("dmc") | by_cell("procgen")
    for name, task, agent, end in TASKS:
        each = (", ".join(map(end, runs.get((task, f"{agent}+{bonus}"), ()))) for bonus in BONUSES)
        yield f"{name}: return of each seed", *each


def main() -> None:
    print(in_markdown(HEAD, rows()))


if __name__ == "__main__":
    main()
