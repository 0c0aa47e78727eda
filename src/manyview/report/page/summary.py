"""Start of a report: the best method of each task with its uncertainty, and the runs that did not finish."""

from collections import Counter
from collections.abc import Iterator, Sequence

from manyview.report.aggregates import Estimate
from manyview.report.material import BrokenRun, RunMaterial
from manyview.report.page.html import Html, make_element, make_table
from manyview.report.ranking import MethodRuns, Ranking, Rival
from manyview.utils.text import format_count

METHOD_HEAD = (
    "method",
    "seeds",
    "last return, mean",
    "IQM",
    "lowest to highest",
    "ended early",
    "not above start",
    "frames",
    "wall-clock",
)


def describe_runs(runs: Sequence[RunMaterial], broken: Sequence[BrokenRun], rankings: Sequence[Ranking]) -> Html:
    """Return one sentence about the number of runs and of those that ended early."""
    states = Counter(run.state for run in runs)
    states["broken"] += len(broken)
    total = len(runs) + len(broken)
    others = ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if state != "finished" and count)
    unfinished = f" Not finished: {others}." if others else " All of them finished."
    return make_element(
        "p",
        f"{format_count(total, 'run')} on {format_count(len(rankings), 'task')}.",
        make_element("span", unfinished, class_="bad" if others else None),
        class_="lead",
    )


def write_overview(rankings: Sequence[Ranking], groups: Sequence[MethodRuns]) -> Iterator[Html]:
    """Yield the verdict and the table of methods of each task, after a table of all tasks if there are several."""
    if len(rankings) > 1:
        yield make_table(
            "Method with the highest mean last return on each task. It is clear if it beats each other one.",
            ("task", "best method", "mean last return", "seeds", "clear"),
            map(list_best_cells, rankings),
        )
    for ranking in rankings:
        yield make_element("h3", ranking.task)
        yield make_element("p", describe_ranking(ranking))
        methods = [*ranking.methods, *(g for g in groups if g.task == ranking.task and not len(g.scores))]
        yield make_table(
            f"Methods on {ranking.task}, by mean last return. In parentheses: 95 % intervals over seeds.",
            METHOD_HEAD,
            map(list_method_cells, methods),
        )
        for group in methods:
            for seed in group.curves.duplicate_seeds:
                text = f"{group.label}: seed {seed} is included more than once. Its runs are not independent."
                yield make_element("p", text, class_="bad")


def list_best_cells(ranking: Ranking) -> list[object]:
    """Return the cells of a task for the table of the best methods."""
    if not ranking.methods:
        return [ranking.task, "-", "-", "-", "-"]
    best = ranking.methods[0]
    clear = ("yes" if ranking.is_clear else "no") if ranking.rivals else "the only method"
    return [ranking.task, wrap_cell(best.label), format_with_interval(best.mean), len(best.scores), clear]


def describe_ranking(ranking: Ranking) -> str:
    """Say which method is best, how much it leads, and whether that is more than chance."""
    if not ranking.methods:
        return "No run has been evaluated yet."
    best = ranking.methods[0]
    lead = f"{best.label} has the highest mean return, {format_with_interval(best.mean)}"
    if not ranking.rivals:
        return f"{lead}, over {format_count(len(best.scores), 'seed')}. There is no other method to compare with."
    # The rival that is hardest to tell from the best, not the one with the next mean.
    rival = max(ranking.rivals, key=lambda rival: (not rival.is_beaten, rival.runs.mean.value))
    if ranking.is_clear:
        verdict = f"Winner: {best.label}. Its mean return is {format_with_interval(best.mean)}"
    elif rival.runs.mean.value == best.mean.value:
        same = format_with_interval(best.mean)
        verdict = f"No winner. {best.label} and {rival.runs.label} have the same mean return, {same}"
    else:
        verdict = f"No clear winner. {lead}, but the order can be chance"
    return f"{verdict}. {describe_rival(rival)}"


def describe_rival(rival: Rival) -> str:
    """Compare the best method with another one in a sentence."""
    p_value = "" if rival.p_value is None else f"; permutation test: p = {rival.p_value:.2g}"
    return (
        f"Against {rival.runs.label}, {format_with_interval(rival.runs.mean)}: probability of improvement "
        f"{format_probability(rival.improvement)}{p_value}."
    )


def list_method_cells(group: MethodRuns) -> list[object]:
    """Return the cells of a method for `METHOD_HEAD`."""
    counts = [_mark_count(group.num_ended_early), _mark_count(group.num_not_improved)]
    num_scores, num_runs = len(group.scores), len(group.runs)
    seeds = f"{num_runs}" if num_scores == num_runs else f"{num_scores} of {num_runs}"
    if not num_scores:
        return [group.label, seeds, "-", "-", "-", *counts, "-", "-"]
    return [
        group.label,
        seeds,
        format_with_interval(group.mean),
        format_with_interval(group.iqm),
        f"{group.scores.min():.4g} to {group.scores.max():.4g}",
        *counts,
        _format_range([run.curve.x[-1] for run in group.evaluated]),
        format_duration([run.seconds for run in group.evaluated if run.seconds is not None]),
    ]


def write_unfinished(runs: Sequence[RunMaterial], broken: Sequence[BrokenRun]) -> Html:
    """Return a table of the runs that did not finish, with their reasons."""
    rows: list[list[object]] = [
        [
            run.name,
            run.curve.task,
            run.curve.method,
            run.curve.seed,
            run.state,
            f"{run.curve.x[-1]:,.0f}" if len(run.curve.x) else "-",
            "-" if run.last_return is None else f"{run.last_return:.4g}",
            wrap_cell(run.reason or ""),
        ]
        for run in runs
        if run.state != "finished" or run.reason is not None
    ]
    rows += [[run.name, "", "", "", "broken", "", "", wrap_cell(run.reason)] for run in broken]
    if not rows:
        return make_element("p", "None: every run reached its last frame.")
    return make_table(
        "Runs that did not finish, or of which a part cannot be read. Their last return counts in all tables.",
        ("run", "task", "method", "seed", "state", "evaluated at frame", "last return", "reason"),
        rows,
    )


def format_with_interval(estimate: Estimate, number_format: str = ".4g") -> str:
    """Format a value with its interval, if there is one."""
    value, interval = estimate
    text = format(value, number_format)
    if interval is None:
        return text
    return f"{text} ({format(float(interval.low), number_format)} to {format(float(interval.high), number_format)})"


def format_probability(estimate: Estimate) -> str:
    """Format a probability with its interval, if there is one."""
    return format_with_interval(estimate, ".2f")


def wrap_cell(*children: object) -> Html:
    """Return the content of a cell whose text may wrap."""
    return make_element("div", *children, class_="wrap")


def format_duration(seconds: Sequence[float]) -> str:
    """Format the median of some durations, such as `1.4 h`."""
    if not seconds:
        return "-"
    middle = sorted(seconds)[len(seconds) // 2]
    for unit, in_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if middle >= 2 * in_s:
            return f"{middle / in_s:.1f} {unit}"
    return f"{middle:.0f} s"


def _mark_count(count: int) -> Html | str:
    return make_element("span", count, class_="bad") if count else "0"


def _format_range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
