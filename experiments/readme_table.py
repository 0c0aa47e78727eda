"""Print the table of the README: what is learned with each bonus, from the tables of the studies.

python -m experiments.readme_table
"""

from collections.abc import Iterable, Iterator

from experiments import composition
from experiments.bonus import comparisons as bonus_study
from experiments.deep_sea import read_attempts
from experiments.privileged import MEM, NONE, RE3, UNTRAINED
from experiments.tables import TableRun, format_table, read_runs

HEAD = ("", "MEM's bonus", "RE3", "no bonus")
DEEP_SEA = {"DrQ-v2": "drqv2", "SAC": "sac", "PPO": "ppo"}
"""Agents of the small sea."""
CONTROL = {"Ball in Cup, SAC": "dmc/ball_in_cup_catch"}
"""Control tasks of the study `base`, without a bonus."""
FROM_IMAGES = (bonus_study.MEM, bonus_study.RE3, bonus_study.NONE)
"""Arms of the study `bonus`."""


def list_rows() -> Iterator[tuple[str, ...]]:
    attempts = read_attempts(composition.STUDY)
    for title, agent in DEEP_SEA.items():
        marginal, joint, re3, none = (
            sum(attempts[f"{agent} {bonus} 10", seed].solved_at_frame is not None for seed in composition.SEEDS)
            for bonus in ("own mem marginal", "own mem joint", "re3", "none")
        )
        name = f"Deep Sea, {title}: solved seeds of {len(composition.SEEDS)}"
        yield name, f"{marginal} `marginal`, {joint} `joint`", str(re3), str(none)
    on_state = _read_counted_runs("privileged")
    name = f"Pendulum Swingup, SAC on the state: final return of {bonus_study.SEEDS} seeds"
    yield name, *(_list_returns(run for run in on_state if run.method == method) for method in (MEM, RE3, NONE))
    untrained = _list_returns(run for run in on_state if run.method == UNTRAINED)
    yield "the same, encoder of the bonus untrained", untrained, "", ""
    from_images = [[run for run in _read_counted_runs("bonus") if run.method == name] for name in FROM_IMAGES]
    name = f"Pendulum Swingup, SAC from images: final return of {len(from_images[0])} seeds"
    yield name, *map(_list_returns, from_images)
    for name, task in CONTROL.items():
        seeds = [run for run in _read_counted_runs("base") if run.task == task]
        yield f"{name}: final return of {len(seeds)} seeds", "", "", _list_returns(seeds)


def _read_counted_runs(study: str) -> list[TableRun]:
    return [run for run in read_runs(study) if not run.variant and run.seed <= bonus_study.SEEDS]


def _list_returns(runs: Iterable[TableRun]) -> str:
    return ", ".join(f"{run.score:.0f}" for run in sorted(runs, key=lambda run: run.seed))


def main() -> None:
    print(format_table(HEAD, list_rows()))


if __name__ == "__main__":
    main()
