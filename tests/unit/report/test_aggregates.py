"""Aggregates over seeds and tasks, the ranking of methods and its certainty."""

from math import comb

import numpy as np
import pytest

from manyview.report.aggregates import (
    compute_profile_band,
    estimate_improvement,
    estimate_iqm,
    estimate_mean,
    resample_seeds,
)
from manyview.report.ranking import MAX_TEST_SPLITS, group_runs, rank_methods
from manyview.report.statistics import compute_improvement_interval, compute_iqm_interval
from tests.unit.report.test_page import make_material, make_two_methods

SCORES = np.array([[1.0, 10.0], [2.0, 30.0], [4.0, 20.0], [8.0, 50.0], [9.0, 40.0]])  # [seeds, tasks]
OTHER_SCORES = np.array([[2.0, 11.0], [3.0, 12.0], [1.0, 35.0], [5.0, 14.0]])


def test_iqm_of_a_full_table_has_the_interval_of_rliable() -> None:
    estimate = estimate_iqm(list(SCORES.T))
    expected = compute_iqm_interval(SCORES)
    assert estimate.value == pytest.approx(np.sort(SCORES.ravel())[2:8].mean())
    assert estimate.interval is not None
    assert [estimate.interval.low, estimate.interval.high] == pytest.approx([expected.low, expected.high], rel=0.05)


def test_improvement_of_full_tables_has_the_interval_of_rliable() -> None:
    estimate = estimate_improvement(list(SCORES.T), list(OTHER_SCORES.T))
    expected = compute_improvement_interval(SCORES, OTHER_SCORES)
    wins = [np.mean(np.sign(a[:, None] - b[None]) / 2 + 0.5) for a, b in zip(SCORES.T, OTHER_SCORES.T, strict=True)]
    assert estimate.value == pytest.approx(np.mean(wins))
    assert estimate.interval is not None
    assert [estimate.interval.low, estimate.interval.high] == pytest.approx([expected.low, expected.high], abs=0.02)


def test_tasks_count_equally_whatever_their_number_of_seeds() -> None:
    scores, others = [np.full(9, 1.0), np.full(3, 0.0)], [np.full(3, 0.0), np.full(5, 1.0)]
    assert estimate_improvement(scores, others).value == 0.5
    assert estimate_improvement(scores[:1], others[:1]).value == 1.0


def test_two_seeds_have_no_interval() -> None:
    assert estimate_mean(np.array([1.0, 3.0])) == (2.0, None)
    assert estimate_iqm([np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0])]).interval is None
    assert estimate_improvement([np.arange(3.0)], [np.arange(2.0)]).interval is None
    assert compute_profile_band([np.arange(2.0)], np.array([0.5]))[1] is None


def test_seeds_are_drawn_within_their_task() -> None:
    samples = resample_seeds([np.array([0.0, 1.0, 2.0]), np.array([10.0, 11.0, 12.0, 13.0])])
    assert samples is not None
    assert [sample.shape for sample in samples] == [(10_000, 3), (10_000, 4)]
    assert [set(np.unique(sample)) for sample in samples] == [{0, 1, 2}, {10, 11, 12, 13}]


def test_profiles_fall_from_one_to_zero_within_their_band() -> None:
    thresholds = np.array([-1.0, 1.5, 3.0, 10.0])
    profile, band = compute_profile_band([np.array([1.0, 2.0, 3.0]), np.array([4.0, 0.0, 2.0])], thresholds)
    assert profile == pytest.approx([1, 4 / 6, 1 / 6, 0])
    assert band is not None
    assert (band.low <= profile).all()
    assert (profile <= band.high).all()
    assert band.low[1] < 4 / 6 < band.high[1]


def test_methods_are_ranked_by_their_mean_and_p_is_two_sided() -> None:
    groups = group_runs(make_two_methods([5.0, 6.0, 7.0, 8.0], [1.0, 2.0, 3.0, 4.0]))
    ranking = rank_methods("toy/a", groups)
    assert [group.label for group in ranking.methods] == ["good", "bad"]
    (rival,) = ranking.rivals
    assert rival.p_value == pytest.approx(2 / comb(8, 4))
    assert ranking.is_clear


def test_p_values_are_corrected_for_the_number_of_rivals() -> None:
    runs = make_two_methods([5.0, 6.0, 7.0, 8.0], [1.0, 2.0, 3.0, 4.0])
    runs += [make_material([0.0, value], method="third", seed=seed) for seed, value in enumerate([1.0, 2.0, 3.0, 4.5])]
    ranking = rank_methods("toy/a", group_runs(runs))
    assert [rival.p_value for rival in ranking.rivals] == pytest.approx([4 / 70, 4 / 70])
    assert not ranking.is_clear


def test_one_rival_that_is_not_beaten_leaves_no_winner() -> None:
    runs = make_two_methods([5.0, 6.0, 7.0, 8.0, 9.0, 9.5], [1.0, 2.0, 3.0, 4.0, 2.0, 3.0])
    assert rank_methods("toy/a", group_runs(runs)).is_clear
    runs += [
        make_material([0.0, value], method="third", seed=seed)
        for seed, value in enumerate([5.0, 6.0, 7.0, 8.0, 9.0, 9])
    ]
    assert not rank_methods("toy/a", group_runs(runs)).is_clear


def test_a_rival_without_a_p_value_counts_for_the_correction_of_the_others() -> None:
    best_returns, few_returns, many_returns = [8.0, 9.0, 10.0, 11.0, 12.0], [1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 60
    runs = [
        make_material([0.0, value], method=method, seed=seed)
        for method, values in (("best", best_returns), ("few", few_returns), ("many", many_returns))
        for seed, value in enumerate(values, 1)
    ]
    p_values = {rival.runs.label: rival.p_value for rival in rank_methods("toy/a", group_runs(runs)).rivals}
    assert p_values == {"few": pytest.approx(2 * 2 / comb(10, 5)), "many": None}


def test_many_seeds_are_decided_by_the_interval() -> None:
    good_returns = [10.0 + seed for seed in range(12)]
    assert comb(24, 12) > MAX_TEST_SPLITS
    clear_ranking = rank_methods("toy/a", group_runs(make_two_methods(good_returns, [1.0] * 12)))
    assert (clear_ranking.rivals[0].p_value, clear_ranking.is_clear) == (None, True)
    unclear_ranking = rank_methods(
        "toy/a", group_runs(make_two_methods(good_returns, [value - 0.5 for value in good_returns]))
    )
    assert not unclear_ranking.is_clear


def test_runs_that_ended_early_count_with_their_last_return() -> None:
    states = ("finished", "failed", "killed", "stopped", "broken", "running", "unknown")
    returns = [[0.0, 1.0], [2.0, 2.0], [2.0, 1.0], [3.0], [0.0, 5.0], [], [1.0, 2.0]]
    (group,) = group_runs(
        [
            make_material(values, seed=seed, state=state)
            for seed, (values, state) in enumerate(zip(returns, states, strict=True))
        ]
    )
    assert group.scores.tolist() == [1.0, 2.0, 1.0, 3.0, 5.0, 2.0]
    assert group.num_ended_early == 4
    assert group.num_not_improved == 2


def test_runs_of_other_settings_are_another_method() -> None:
    runs = [make_material([1.0], seed=seed, settings={"k": seed % 2}) for seed in range(4)]
    assert [(group.label, len(group.runs)) for group in group_runs(runs)] == [("m, k 0", 2), ("m, k 1", 2)]
