"""The bootstrap interval, beside scipy's."""

import numpy as np
import pytest
from scipy import stats

from manyview.report.statistics import bootstrap_interval, format_mean


def test_the_interval_is_that_of_scipy() -> None:
    values = np.random.default_rng(0).exponential(100, size=20)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=10_000, rng=1).confidence_interval
    assert np.allclose(bootstrap_interval(values), (theirs.low, theirs.high), rtol=0.03)


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
