"""Methods of a task, ordered by their returns, and the certainty of the order."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb

import numpy as np

from manyview.report.aggregates import Estimate, estimate_improvement, estimate_iqm, estimate_mean
from manyview.report.curves import CurveGroup, group_curves
from manyview.report.material import RunMaterial
from manyview.report.statistics import FloatArray, compute_permutation_p, correct_holm

SIGNIFICANCE = 0.05
MAX_TEST_SPLITS = 200_000
"""Splits that are listed for a p-value, which takes about a second; ten seeds against ten have 184,756."""
EARLY_ENDS = ("failed", "killed", "stopped", "broken")


@dataclass(frozen=True)
class MethodRuns:
    """Runs that differ only in their seed."""

    task: str
    label: str
    """Method, and the settings that differ from other methods of the task."""
    runs: tuple[RunMaterial, ...]

    @cached_property
    def evaluated(self) -> tuple[RunMaterial, ...]:
        """Runs with at least one evaluation."""
        return tuple(run for run in self.runs if run.last_return is not None)

    @cached_property
    def scores(self) -> FloatArray:
        """Last return of each evaluated run, also of one that ended early."""
        return np.array([run.last_return for run in self.evaluated], np.float64)

    @property
    def curves(self) -> CurveGroup:
        """Returns over frames of the evaluated runs."""
        return CurveGroup(task=self.task, label=self.label, curves=tuple(run.curve for run in self.evaluated))

    @property
    def timed_curves(self) -> CurveGroup:
        """Returns over seconds of the evaluated runs."""
        curves = tuple(run.timed_curve for run in self.evaluated if len(run.timed_curve.x))
        return CurveGroup(task=self.task, label=self.label, curves=curves)

    @cached_property
    def mean(self) -> Estimate:
        return estimate_mean(self.scores)

    @cached_property
    def iqm(self) -> Estimate:
        return estimate_iqm([self.scores])

    @property
    def num_ended_early(self) -> int:
        return sum(run.state in EARLY_ENDS for run in self.runs)

    @property
    def num_not_improved(self) -> int:
        """Number of runs whose last return is not above their first one, that of the untrained policy."""
        returns = [run.curve.returns for run in self.evaluated]
        return sum(len(values) > 1 and values[-1] <= values[0] for values in returns)


@dataclass(frozen=True)
class Rival:
    """Comparison of the method with the highest mean return with another one."""

    runs: MethodRuns
    improvement: Estimate
    """Probability that a run of the best method beats one of this."""
    p_value: float | None
    """Two-sided, corrected for the number of rivals; None with too many seeds for an exact one."""

    @property
    def is_beaten(self) -> bool:
        if self.p_value is not None:
            return self.p_value <= SIGNIFICANCE
        return self.improvement.interval is not None and bool(self.improvement.interval.low > 0.5)


@dataclass(frozen=True)
class Ranking:
    """Methods of a task by their mean return, best first."""

    task: str
    methods: tuple[MethodRuns, ...]
    """Methods with at least one evaluated run."""
    rivals: tuple[Rival, ...]

    @property
    def is_clear(self) -> bool:
        """True if the first method beats each other one."""
        return bool(self.rivals) and all(rival.is_beaten for rival in self.rivals)


def group_runs(runs: Sequence[RunMaterial]) -> list[MethodRuns]:
    """Group runs by task, method and settings."""
    by_path = {run.curve.path: run for run in runs}
    return [
        MethodRuns(group.task, group.label, tuple(by_path[curve.path] for curve in group.curves))
        for group in group_curves([run.curve for run in by_path.values()])
    ]


def rank_methods(task: str, groups: Sequence[MethodRuns]) -> Ranking:
    """Rank the methods of a task."""
    methods = sorted((group for group in groups if len(group.scores)), key=lambda group: -group.mean.value)
    if not methods:
        return Ranking(task, (), ())
    best, *others = methods
    p_values = {other.label: _compute_p(best, other) for other in others}
    # Rivals without a p-value are compared too: they count for the correction of the others.
    corrected = correct_holm({label: 1.0 if p_value is None else p_value for label, p_value in p_values.items()})
    rivals = [
        Rival(
            other,
            estimate_improvement([best.scores], [other.scores]),
            None if p_values[other.label] is None else corrected[other.label],
        )
        for other in others
    ]
    return Ranking(task, tuple(methods), tuple(rivals))


def _compute_p(best: MethodRuns, other: MethodRuns) -> float | None:
    if comb(len(best.scores) + len(other.scores), len(best.scores)) > MAX_TEST_SPLITS:
        return None
    # Twice the one-sided value: the same returns have chosen the best method.
    return min(1.0, 2 * compute_permutation_p(best.scores, other.scores))
