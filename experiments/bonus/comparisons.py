"""Tests of a study of the bonus, in the order of its plan: nothing after the first failure is tested."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from experiments.tables import TableRun, format_mean, name_arm
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
    variant: str = ""
    """Variant of the other arm; MEM's arm has none."""


class Plan(NamedTuple):
    """Comparisons of a study, one method of which has MEM's bonus."""

    method: str
    in_order: tuple[Comparison, ...]
    described: tuple[Comparison, ...]
    """Without a test: a probability of improvement with its interval."""
    harm: Comparison | None = None
    """Tested in the other direction, whatever the tests in order find."""


PLAN = Plan(
    MEM,
    in_order=(
        Comparison(PENDULUM, NONE),
        Comparison(PENDULUM, SHUFFLED),
        Comparison(CARTPOLE, NONE),
        Comparison(HOPPER, NONE),
    ),
    described=(Comparison(PENDULUM, RE3), Comparison(HOPPER, RE3)),
    harm=Comparison(CUP, NONE),
)
HEAD = ("task", "against", "MEM", "the other", "probability of improvement", "p", "result")


def list_rows(runs: Iterable[TableRun], plan: Plan = PLAN) -> Iterator[tuple[str, ...]]:
    """Yield a line for each comparison whose runs are complete."""
    scores: dict[Comparison, list[float]] = {}
    for run in runs:
        if run.seed <= SEEDS:
            scores.setdefault(Comparison(run.task, run.method, run.variant), []).append(run.score)

    def find_scores(comparison: Comparison) -> tuple[list[float], list[float]] | None:
        mem, other = scores.get(Comparison(comparison.task, plan.method), []), scores.get(comparison, [])
        return (mem, other) if min(len(mem), len(other)) == SEEDS else None

    failed = False
    for comparison in plan.in_order:
        if (pair := find_scores(comparison)) is None:
            failed = True  # what follows must wait for these runs
            continue
        p = compute_permutation_p(*pair)
        result = "not tested" if failed else "above" if p <= ALPHA else "not above"
        yield *_describe(comparison, *pair), "" if failed else f"{p:.3f}", result
        failed = failed or p > ALPHA
    if plan.harm and (pair := find_scores(plan.harm)):
        mem, other = pair
        p = compute_permutation_p(other, mem)
        yield *_describe(plan.harm, mem, other), f"{p:.3f}", "below" if p <= ALPHA else "not below"
    for comparison in plan.described:
        if pair := find_scores(comparison):
            yield *_describe(comparison, *pair), "", "no test"


def _describe(comparison: Comparison, mem: Sequence[float], other: Sequence[float]) -> tuple[str, ...]:
    low, high = compute_improvement_interval([[score] for score in mem], [[score] for score in other])
    return (
        f"`{comparison.task}`",
        name_arm(comparison.other, comparison.variant),
        format_mean(mem),
        format_mean(other),
        f"{low:.2f} to {high:.2f}",
    )
