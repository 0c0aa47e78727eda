"""Statistics against those of scipy and of rliable 1.2.0.

The results of rliable for `SCORES` and `OTHER_SCORES` are constants here: its dependency arch 7 fails with pandas 3.
"""

import numpy as np
import pytest
from scipy import stats

from manyview.report.statistics import (
    bootstrap_interval,
    compute_fisher_p,
    compute_improvement,
    compute_improvement_interval,
    compute_iqm,
    compute_iqm_interval,
    compute_permutation_p,
    compute_profile,
    correct_holm,
    format_mean,
)

# [seeds, tasks]
SCORES = [[107, 31, 538], [37, 12, 180], [50, 55, 3], [76, 104, 23], [168, 21, 79]]
OTHER_SCORES = [[9, 15, 36], [50, 85, 94], [17, 12, 35], [40, 129, 25]]


def test_the_interval_is_that_of_scipy() -> None:
    values = np.random.default_rng(0).exponential(100, size=20)
    scipy_interval = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=10_000, rng=1
    ).confidence_interval
    assert np.allclose(bootstrap_interval(values), (scipy_interval.low, scipy_interval.high), rtol=0.03)


def test_the_interval_of_three_values_is_their_range() -> None:
    low, high = bootstrap_interval([3.0, 9.0, 5.0])
    assert (float(low), float(high)) == (3.0, 9.0)


def test_every_column_has_the_interval_it_would_have_alone() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 4))
    low, high = bootstrap_interval(rows)
    for column in range(4):
        assert np.allclose((low[column], high[column]), bootstrap_interval(rows[:, column]))


def test_one_value_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        bootstrap_interval([1.0])
    assert format_mean([1.0]) == "1.0"
    assert format_mean([2.0, 2.0]) == "2.0, 95 % interval 2.0 to 2.0"


def test_the_interquartile_mean_is_that_of_rliable() -> None:
    assert np.isclose(compute_iqm(SCORES), 62.44444444444444)
    assert np.isclose(compute_iqm(OTHER_SCORES), 33.833333333333336)
    assert np.isclose(compute_iqm(OTHER_SCORES), stats.trim_mean(np.ravel(OTHER_SCORES), 0.25))


def test_the_interval_of_the_interquartile_mean_is_that_of_rliable() -> None:
    assert np.allclose(compute_iqm_interval(SCORES), (36.88888889, 106.77777778), rtol=0.02)


def test_the_probability_of_improvement_is_that_of_rliable() -> None:
    assert np.isclose(compute_improvement(SCORES, OTHER_SCORES), 0.6333333333333334)
    with_ties = np.round(SCORES, -2), np.round(OTHER_SCORES, -2)
    assert np.isclose(compute_improvement(*with_ties), 0.6583333333333333)


def test_the_interval_of_the_improvement_resamples_both_sides_within_each_task() -> None:
    assert np.allclose(compute_improvement_interval(SCORES, OTHER_SCORES), (0.41666667, 0.84166667), atol=0.01)


def test_the_profile_is_that_of_rliable() -> None:
    shares = compute_profile(SCORES, [0, 50, 100, 150, 200, 300])
    assert np.allclose(shares * 15, [15, 8, 5, 3, 1, 1])


def test_one_task_needs_no_second_axis() -> None:
    column = np.array(SCORES)[:, 0]
    assert np.allclose(compute_iqm_interval(column), compute_iqm_interval(column[:, None]))


def test_the_permutation_test_is_that_of_scipy() -> None:
    values, others = [812.0, 700.0, 5.0, 640.0, 700.0], [4.0, 90.0, 5.0, 330.0, 700.0]
    scipy_result = stats.permutation_test(
        (values, others), lambda x, y: np.mean(x) - np.mean(y), alternative="greater", n_resamples=np.inf
    )
    assert np.isclose(compute_permutation_p(values, others), scipy_result.pvalue)


def test_the_least_p_value_of_five_against_five_is_one_of_252() -> None:
    assert compute_permutation_p([5, 6, 7, 8, 9], [0, 1, 2, 3, 4]) == 1 / 252
    assert compute_permutation_p([0.1, 0.2, 0.3], [0.3, 0.1, 0.2]) > 0.5


def test_too_many_splits_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 1,000,000 splits, got 20 and 20"):
        compute_permutation_p(range(20), range(20))


@pytest.mark.parametrize(("num_solved", "num_solved_by_other"), [(9, 2), (2, 9), (0, 0), (10, 10)])
def test_fishers_test_is_that_of_scipy(num_solved: int, num_solved_by_other: int) -> None:
    scipy_result = stats.fisher_exact(
        [[num_solved, 10 - num_solved], [num_solved_by_other, 10 - num_solved_by_other]], alternative="greater"
    )
    assert np.isclose(compute_fisher_p(num_solved, 10, num_solved_by_other, 10), scipy_result.pvalue)


def test_holms_correction_is_that_computed_by_hand() -> None:
    # Sorted: 3 x 0.01, then 2 x 0.02 = 0.04, then 0.03, which may not be below the one before.
    p_values = correct_holm({"a": 0.03, "b": 0.01, "c": 0.02})
    assert {name: round(p_value, 9) for name, p_value in p_values.items()} == {"a": 0.04, "b": 0.03, "c": 0.04}
