"""Controls of MEM's bonus on Deep Sea: equal settings, and a table that tells them apart."""

import pytest

from experiments import composition
from experiments.adaptation import ARMS, SEEDS, list_rows, make_config
from experiments.bonus.controls import register_controls
from experiments.composition import Arm
from experiments.deep_sea import Attempt
from manyview.config.overrides import to_plain


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.bonus)
def test_a_control_differs_from_own_mem_in_its_bonus_alone(arm: Arm) -> None:
    register_controls()
    bonus, entropy = arm.bonus.split()
    plain = to_plain(make_config(arm, 11))
    mem = to_plain(composition.make_config(Arm(arm.agent, f"own mem {entropy}", arm.size), 11))
    assert plain["bonus"].pop("name") == bonus
    assert mem["bonus"].pop("name") == "mem"
    assert plain == mem
    assert plain["bonus"]["entropy"] == entropy


def make_attempts(bonus: str, solved: int) -> dict[tuple[str, int], Attempt]:
    variant = Arm("sac", bonus, 10).variant
    return {
        (variant, seed): Attempt(variant, seed, 800 if index < solved else None, None, 3_000)
        for index, seed in enumerate(SEEDS)
    }


def test_each_control_is_compared_with_the_same_entropy() -> None:
    attempts: dict[tuple[str, int], Attempt] = {}
    for arm in ARMS:
        attempts |= make_attempts(arm.bonus, {"mem joint": 9, "mem marginal": 2}.get(arm.bonus, 2))
    rows = {row[0]: row for row in list_rows(attempts)}
    assert rows["mem joint"][3] == "9"
    # Fisher: 9 of 10 above 2 of 10 has p = 0.0027, times 5 for the smallest of five.
    assert {rows[f"{control} joint"][5] for control in ("untrained_mem", "frozen_mem", "random_mem")} == {"0.014"}
    assert rows["frozen_mem marginal"][5] == "1.000"


def test_nothing_is_tested_before_every_arm_is_complete() -> None:
    attempts: dict[tuple[str, int], Attempt] = {}
    for arm in ARMS:
        attempts |= make_attempts(arm.bonus, 5)
    del attempts[ARMS[-1].variant, SEEDS[-1]]
    assert {row[5] for row in list_rows(attempts)} == {""}
