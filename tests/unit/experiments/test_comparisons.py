"""The study of the bonus tests in the order of its plan, and stops at the first failure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from experiments import privileged
from experiments.bonus.comparisons import CARTPOLE, CUP, HOPPER, MEM, NONE, PENDULUM, RE3, SHUFFLED, list_rows
from experiments.bonus.controls import register_controls
from experiments.tables import Row, TableRun
from manyview.config.method import parse_method
from manyview.config.overrides import to_plain
from manyview.scale.sweep import read_sweep

HIGH, LOW, MIXED = (800, 810, 820, 830, 840), (10, 20, 30, 40, 50), (5, 805, 15, 835, 45)
LESS = (790, 805, 815, 812, 842)


Scores = Mapping[tuple[str, str], Sequence[float]]


def make_runs(scores: Scores, variant: str = "") -> list[TableRun]:
    register_controls()
    runs = []
    for (task, method), returns in scores.items():
        for seed, score in enumerate(returns, start=1):
            start = "bonus", variant, task, *parse_method(method), "0+1", seed
            rows = [Row(*start, float(frames), 60.0, "return", score, "") for frames in (0, 10, 20, 30)]
            runs.append(TableRun(tuple(rows)))
    return runs


def judge(scores: Scores) -> dict[tuple[str, str], tuple[str, str]]:
    return {(row[0].strip("`"), row[1].strip("`")): (row[-2], row[-1]) for row in list_rows(make_runs(scores))}


def test_all_tests_are_made_while_they_pass() -> None:
    scores = {(task, MEM): HIGH for task in (PENDULUM, CARTPOLE, HOPPER)}
    scores |= {(task, NONE): LOW for task in (PENDULUM, CARTPOLE, HOPPER)} | {(PENDULUM, SHUFFLED): LOW}
    assert set(judge(scores).values()) == {("0.004", "above")}


def test_nothing_is_tested_after_a_failure() -> None:
    scores = {(PENDULUM, MEM): HIGH, (PENDULUM, NONE): LOW, (PENDULUM, SHUFFLED): HIGH}
    scores |= {(HOPPER, MEM): HIGH, (HOPPER, NONE): LOW, (HOPPER, RE3): MIXED}
    judged = judge(scores)
    assert judged[PENDULUM, NONE] == ("0.004", "above")
    assert judged[PENDULUM, SHUFFLED][1] == "not above"
    assert judged[HOPPER, NONE] == ("", "not tested")
    assert judged[HOPPER, RE3] == ("", "no test")


@pytest.mark.parametrize("missing", [NONE, SHUFFLED])
def test_tests_wait_for_the_runs_of_earlier_ones(missing: str) -> None:
    scores: dict[tuple[str, str], Sequence[float]] = {(PENDULUM, MEM): HIGH, (PENDULUM, NONE): LOW}
    scores |= {(PENDULUM, SHUFFLED): LOW, (HOPPER, MEM): HIGH, (HOPPER, NONE): LOW, (PENDULUM, missing): LOW[:4]}
    assert judge(scores)[HOPPER, NONE] == ("", "not tested")


@pytest.mark.parametrize(("mem", "result"), [(LOW, ("0.004", "below")), (LESS, ("0.262", "not below"))])
def test_harm_is_tested_without_the_others(mem: Sequence[float], result: tuple[str, str]) -> None:
    assert judge({(CUP, MEM): mem, (CUP, NONE): HIGH}) == {(CUP, NONE): result}


def test_trials_are_not_counted() -> None:
    runs = make_runs({(PENDULUM, MEM): (*HIGH, 0), (PENDULUM, NONE): LOW})
    assert [row[-2] for row in list_rows(runs)] == ["0.004"]


def test_the_arms_of_the_privileged_study_are_those_of_its_files() -> None:
    register_controls()
    folder = Path(privileged.__file__).parent
    planned = [run for file in folder.glob("*.toml") for run in read_sweep(file).plan_runs()]
    arms = {(run.config.task, run.config.method, run.variant) for run in planned}
    named = (*privileged.PLAN.in_order, *privileged.PLAN.described)
    assert arms == {(PENDULUM, privileged.MEM, ""), *named}
    configs = [run.config for run in planned]
    bonuses = {config.bonus_name: config.bonus for config in configs}
    names = ("shuffled_mem", "untrained_mem", "frozen_mem", "random_mem")
    assert [to_plain(bonuses[name]) for name in names] == [to_plain(bonuses["mem"])] * len(names)
    assert {config.bonus.beta0 for config in configs if config.bonus_name != "none"} == {1.8}
    scores = {
        (PENDULUM, privileged.MEM): HIGH,
        (PENDULUM, privileged.NONE): LOW,
        (PENDULUM, privileged.SHUFFLED): HIGH,
    }
    rows = {row[1].strip("`"): row[-1] for row in list_rows(make_runs(scores), privileged.PLAN)}
    assert rows == {privileged.NONE: "above", privileged.SHUFFLED: "not above"}


@pytest.mark.parametrize(("tuned", "result"), [(LOW, "above"), (HIGH, "not above")])
def test_a_variant_of_no_bonus_is_an_arm_of_its_own(tuned: Sequence[float], result: str) -> None:
    none, shuffled = (PENDULUM, privileged.NONE), (PENDULUM, privileged.SHUFFLED)
    runs = make_runs({(PENDULUM, privileged.MEM): HIGH, none: LOW, shuffled: LOW})
    runs += make_runs({none: tuned}, privileged.TEMPERATURE)
    rows = list(list_rows(runs, privileged.PLAN))
    arms = ["`sac+no_images`", "`sac+no_images+shuffled_mem`", "`sac+no_images`, temperature"]
    assert [row[1] for row in rows] == arms
    assert [row[-1] for row in rows] == ["above", "above", result]
