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
    control, entropy = arm.bonus.split()
    plain = to_plain(make_config(arm, 11))
    mem = to_plain(composition.make_config(Arm(arm.agent, f"own mem {entropy}", arm.size), 11))
    assert plain["bonus"].pop("name") == control
    assert mem["bonus"].pop("name") == "mem"
    assert plain == mem
    assert plain["bonus"]["entropy"] == entropy


def test_the_table_compares_each_control_with_the_same_entropy() -> None:
    def solve(bonus: str, count: int) -> dict[tuple[str, int], Attempt]:
        variant = Arm("sac", bonus, 10).variant
        return {
            (variant, seed): Attempt(variant, seed, 800 if index < count else None, None, 3_000)
            for index, seed in enumerate(SEEDS)
        }

    attempts = solve("own mem joint", 9) | solve("own mem marginal", 2) | solve("none", 1)
    for arm in ARMS:
        attempts |= solve(arm.bonus, 2)
    rows = {row[0]: row for row in list_rows(attempts)}
    assert rows["own mem joint"][3] == "9"
    # Fisher: 9 of 10 above 2 of 10 has p = 0.0027; the smallest two of six have the factors 6 and 5, never decreasing.
    assert rows["frozen_mem joint"][5] == "0.016"
    assert rows["frozen_mem marginal"][5] == "1.000"
