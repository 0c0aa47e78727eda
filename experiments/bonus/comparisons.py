"""Tests of the study of the bonus, in the order of its plan: nothing after the first failure is tested."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from experiments.tables import TableRun, format_mean
from manyview.report.statistics import compute_improvement_interval, compute_permutation_p

ALPHA = 0.05
SEEDS = 5
NONE, RE3, MEM, SHUFFLED = "sac+none", "sac+re3", "sac+pixel+mem", "sac+shuffled_mem"
PENDULUM, CARTPOLE, HOPPER = (f"dmc/{name}" for name in ("pendulum_swingup", "cartpole_swingup_sparse", "hopper_stand"))
CUP = "dmc/ball_in_cup_catch"


class Comparison(NamedTuple):
    """MEM on a task against another arm."""

    task: str
    other: str


IN_ORDER = (
    Comparison(PENDULUM, NONE),
    Comparison(PENDULUM, SHUFFLED),
    Comparison(CARTPOLE, NONE),
    Comparison(HOPPER, NONE),
)
HARM = Comparison(CUP, NONE)
"""Tested in the other direction, whatever the tests in order find."""
DESCRIBED = (Comparison(PENDULUM, RE3), Comparison(HOPPER, RE3))
"""Comparisons without a test: a probability of improvement with its interval."""
HEAD = ("task", "against", "MEM", "the other", "probability of improvement", "p", "result")


def list_rows(runs: Iterable[TableRun]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each comparison whose runs are complete."""
    scores: dict[Comparison, list[float]] = {}
    for run in runs:
        if not run.variant and run.seed <= SEEDS:
            scores.setdefault(Comparison(run.task, run.method), []).append(run.score)
    failed = False
    for comparison in (*IN_ORDER, HARM, *DESCRIBED):
        mem, other = scores.get(Comparison(comparison.task, MEM), []), scores.get(comparison, [])
        is_complete = min(len(mem), len(other)) == SEEDS
        if comparison not in IN_ORDER:
            if is_complete and comparison == HARM:
                p = compute_permutation_p(other, mem)
                yield *_describe(comparison, mem, other), f"{p:.3f}", "below" if p <= ALPHA else "not below"
            elif is_complete:
                yield *_describe(comparison, mem, other), "", "no test"
        elif not is_complete:
            failed = True  # what follows must wait for these runs
        else:
            p = compute_permutation_p(mem, other)
            result = "not tested" if failed else "above" if p <= ALPHA else "not above"
            yield *_describe(comparison, mem, other), "" if failed else f"{p:.3f}", result
            failed = failed or p > ALPHA


def _describe(comparison: Comparison, mem: Sequence[float], other: Sequence[float]) -> tuple[str, ...]:
    low, high = compute_improvement_interval([[score] for score in mem], [[score] for score in other])
    return (
        f"`{comparison.task}`",
        f"`{comparison.other}`",
        format_mean(mem),
        format_mean(other),
        f"{low:.2f} to {high:.2f}",
    )
