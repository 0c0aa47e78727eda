"""Return curves, comparison over all tasks, and published results."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from manyview.report.aggregates import (
    compute_profile_band,
    estimate_improvement,
    estimate_iqm,
    estimate_mean,
)
from manyview.report.curves import CurveGroup, compute_mean_curve
from manyview.report.page.chart import Line, Mark, XUnit, draw_chart, draw_legend
from manyview.report.page.html import Html, make_element, make_table
from manyview.report.page.summary import format_probability, format_with_interval
from manyview.report.published_results import PublishedResult
from manyview.report.ranking import MethodRuns
from manyview.report.statistics import FloatArray
from manyview.utils.text import format_count

Styles = Mapping[str, int]
"""Number of the line style of each label."""
PROFILE_POINTS = 101
MAX_IMPROVEMENT_METHODS = 12
"""Methods up to which all pairs are compared; the table has a row for each pair."""


def write_curves(
    task: str, groups: Sequence[MethodRuns], styles: Styles, published: Sequence[PublishedResult]
) -> Iterator[Html]:
    """Yield the curves of a task over frames and over wall-clock time, with the published results below."""
    rows = [row for row in published if row.task == task]
    marks = [make_mark(number, row) for number, row in enumerate(rows, 1)]
    end = max((float(run.curve.x[-1]) for group in groups for run in group.evaluated), default=0.0)
    shown = [mark for mark in marks if mark.x <= 1.02 * end]
    entries = [
        (styles[g.label], f"{g.label} ({format_count(len(g.evaluated), 'seed')})") for g in groups if g.evaluated
    ]
    yield make_element("h3", task)
    if entries:
        yield draw_legend(entries, [(mark.number, f"{rows[mark.number - 1].method}, published") for mark in shown])
        yield make_element(
            "div",
            _draw_returns(task, [g.curves for g in groups], styles, "frames", shown),
            _draw_returns(task, [g.timed_curves for g in groups], styles, "seconds", ()),
            class_="grid",
        )
    else:
        yield make_element("p", "No run has been evaluated yet.")
    if rows:
        yield make_table(
            f"Published results on {task}." + (" Numbers are those of the marks in the chart." if entries else ""),
            ("number", "method", "frames", "mean return", "seeds", "views", "source"),
            (
                [
                    number,
                    row.method,
                    f"{row.frames:,}",
                    format_with_interval(estimate_mean(np.array(row.returns))),
                    len(row.returns),
                    "-" if row.views is None else row.views,
                    make_element("div", row.source, class_="wrap"),
                ]
                for number, row in enumerate(rows, 1)
            ),
        )


def make_mark(number: int, row: PublishedResult) -> Mark:
    """Return a published result as a mark of a chart; fewer than three seeds have no interval."""
    mean, interval = estimate_mean(np.array(row.returns))
    low, high = (mean, mean) if interval is None else (float(interval.low), float(interval.high))
    return Mark(number=number, x=row.frames, y=mean, low=low, high=high)


def write_aggregates(groups: Sequence[MethodRuns], styles: Styles) -> Iterator[Html]:
    """Yield IQM, performance profiles and probabilities of improvement over all tasks."""
    tasks = sorted({group.task for group in groups if len(group.scores)})
    scores = collect_scores(groups, tasks)
    if not scores:
        yield make_element("p", "No method has an evaluated run on every task, so methods cannot be compared over all.")
        return
    unit = "last return" if len(tasks) == 1 else "normalized score"
    if len(tasks) > 1:
        yield make_element(
            "p",
            f"{format_count(len(scores), 'method')} with runs on all {len(tasks)} tasks. "
            "A normalized score is 0 at the mean return of the untrained policies of a task and 1 at the best last "
            "return in this report, so it compares methods within this page only.",
        )
    yield make_table(
        f"Interquartile mean and mean of the {unit} over all runs, with 95 % intervals.",
        ("method", "runs", "IQM", "mean"),
        (
            [label, sum(map(len, values)), format_with_interval(estimate_iqm(values)), _format_mean(values)]
            for label, values in scores.items()
        ),
    )
    yield draw_legend([(styles[label], label) for label in scores])
    yield make_element("div", _draw_profiles(scores, styles, unit), class_="grid")
    if len(scores) > 1:
        yield _write_improvements(scores)


def collect_scores(groups: Sequence[MethodRuns], tasks: Sequence[str]) -> dict[str, list[FloatArray]]:
    """Return the scores of the methods that have runs on all tasks, by label and task.

    With several tasks they are normalized; tasks on which no run beats the untrained policies are left out.
    """
    ranges = {task: _find_range([group for group in groups if group.task == task]) for task in tasks}
    used = [task for task in tasks if len(tasks) == 1 or ranges[task][1] > ranges[task][0]]
    by_label: dict[str, dict[str, FloatArray]] = {}
    for group in groups:
        if len(group.scores) and group.task in used:
            low, high = (0.0, 1.0) if len(tasks) == 1 else ranges[group.task]
            by_label.setdefault(group.label, {})[group.task] = (group.scores - low) / (high - low)
    return {
        label: [by_task[task] for task in used]
        for label, by_task in sorted(by_label.items())
        if used and len(by_task) == len(used)
    }


def _find_range(groups: Sequence[MethodRuns]) -> tuple[float, float]:
    """Return the mean first return and the highest last return of a task."""
    runs = [run for group in groups for run in group.evaluated]
    return float(np.mean([run.curve.returns[0] for run in runs])), max(run.curve.returns[-1] for run in runs)


def _format_mean(values: Sequence[FloatArray]) -> str:
    """Format the mean over tasks of the mean over seeds; with one task, with its interval."""
    if len(values) == 1:
        return format_with_interval(estimate_mean(values[0]))
    return f"{np.mean([scores.mean() for scores in values]):.4g}"


def _draw_returns(task: str, groups: Sequence[CurveGroup], styles: Styles, unit: XUnit, marks: Sequence[Mark]) -> Html:
    lines = [line for group in groups for line in _list_lines(group, styles[group.label])]
    over = "simulator frames" if unit == "frames" else "wall-clock time"
    title = f"Evaluation return on {task} over {over}: {', '.join(group.label for group in groups)}"
    chart = draw_chart(lines, title=title, x_unit=unit, y_label="evaluation return", marks=marks)
    text = f"Return over {over}. "
    if unit == "frames":
        text += (
            "Bold: mean, with its 95 % bootstrap interval as a band. Thin: single seeds. "
            "The mean ends where the shortest seed ends."
        )
    return make_element("figure", chart, make_element("figcaption", text))


def _list_lines(group: CurveGroup, style: int) -> list[Line]:
    if not group.curves:
        return []
    mean = compute_mean_curve(group)
    singles = [Line(style=style, x=c.x, y=c.returns, is_thin=mean is not None) for c in group.curves]
    if mean is None:
        return singles
    low, high = mean.interval
    return [*singles, Line(style=style, x=mean.x, y=mean.returns, low=low, high=high)]


def _draw_profiles(scores: Mapping[str, Sequence[FloatArray]], styles: Styles, unit: str) -> Html:
    pooled = np.concatenate([values for table in scores.values() for values in table])
    low, high = float(pooled.min()), float(pooled.max())
    margin = 0.02 * (high - low) or 0.5
    thresholds = np.linspace(low - margin, high + margin, PROFILE_POINTS)
    lines = []
    for label, table in scores.items():
        profile, band = compute_profile_band(table, thresholds)
        low_end, high_end = (None, None) if band is None else band
        lines.append(Line(style=styles[label], x=thresholds, y=profile, low=low_end, high=high_end))
    title = f"Performance profiles of {', '.join(scores)}"
    chart = draw_chart(
        lines, title=title, x_unit="score", x_label=unit, y_label="share of runs above", y_range=(0.0, 1.0)
    )
    caption = f"Performance profiles: share of runs whose {unit} is above the value on the x axis, with 95 % bands."
    return make_element("figure", chart, make_element("figcaption", caption))


def _write_improvements(scores: Mapping[str, Sequence[FloatArray]]) -> Html:
    labels = list(scores)[:MAX_IMPROVEMENT_METHODS]
    pairs = [(first, second) for number, first in enumerate(labels) for second in labels[number + 1 :]]
    left_out = len(scores) - len(labels)
    note = f" The last {left_out} methods are left out." if left_out else ""
    return make_table(
        f"Probability that a run of the first method beats one of the second on a task, ties counted half.{note}",
        ("first", "second", "probability of improvement"),
        (
            [first, second, format_probability(estimate_improvement(scores[first], scores[second]))]
            for first, second in pairs
        ),
    )
